#include <algorithm>

#include "runtime/decode/model.h"

// One token each of several sequences.
namespace hayloft::runtime {

int Model::tokens_as_alone() const {
  const int tokens = backend_->tokens_multiplied_as_alone();
  return near_ ? std::min(tokens, near_->tokens_multiplied_as_alone()) : tokens;
}

void Model::forward_together(std::span<ModelStep> steps, Workspace& workspace) const {
  if (steps.empty()) return;
  const std::int64_t H = config_.hidden_size;
  const gpu::Stream stream = backend_->stream();
  const std::size_t most = std::min(steps.size(), static_cast<std::size_t>(tokens_as_alone()));
  const auto fail_step = [](ModelStep& step) {
    step.failure = std::current_exception();
    step.cache->abandon();
  };
  // Runs what concerns some of the steps: its failure is theirs, but for those that have failed before.
  const auto guard = [&](std::span<ModelStep> group, const auto& part) {
    try {
      part();
    } catch (...) {
      for (ModelStep& step : group) {
        if (!step.failure) fail_step(step);
      }
    }
  };
  const std::unique_ptr<gpu::Step> together = backend_->begin_step(static_cast<int>(most));
  Activations act{};
  guard(steps, [&] {
    act = prepare(workspace, static_cast<int>(most));
    const std::uint64_t bytes = steps.size() * static_cast<std::uint64_t>(H) * sizeof(float);
    if (workspace.hidden.bytes() < bytes) workspace.hidden = backend_->allocate(bytes, stream);
    if (workspace.flags.size() < steps.size()) workspace.flags.resize(steps.size());
  });
  // part(steps, how many, the first) for each group of steps whose rows are multiplied together, in act.
  const auto each_group = [&](const auto& part) {
    for (std::size_t first = 0; first < steps.size(); first += most) {
      const std::span<ModelStep> group = steps.subspan(first, std::min(most, steps.size() - first));
      if (std::ranges::all_of(group, [](const ModelStep& step) { return step.failure != nullptr; })) continue;
      act.hidden = workspace.hidden.as<float>() + static_cast<std::int64_t>(first) * H;
      guard(group, [&] { part(group, std::span(workspace.flags).subspan(first, group.size())); });
    }
  };
  // Visits every step of a group that nothing has gone wrong with yet, and its row.
  const auto each = [&](std::span<ModelStep> group, const auto& part) {
    for (std::size_t i = 0; i < group.size(); ++i) {
      if (!group[i].failure) guard(group.subspan(i, 1), [&] { part(group[i], static_cast<std::int64_t>(i)); });
    }
  };
  each_group([&](std::span<ModelStep> group, std::span<NanFlag> flags) {
    each(group, [&](const ModelStep& step, std::int64_t row) {
      check_ids({&step.token, 1});
      require_own(*step.cache);
      clear_flag(flags[static_cast<std::size_t>(row)]);
      fetch_ahead(-1, *step.cache);
      embed(&step.token, 1, act.hidden + row * H);
    });
  });
  for (int layer = 0; layer < config_.layers; ++layer) {
    each_group([&](std::span<ModelStep> group, std::span<NanFlag> flags) {
      const int rows = static_cast<int>(group.size());
      const float* const input =
          normed(act.hidden, weights_.layers[static_cast<std::size_t>(layer)].attention_norm, act, rows);
      const bool recurrent = config_.kind(layer) == LayerKind::recurrent;
      if (recurrent) {
        project_delta(layer, input, rows, act);
      } else {
        project_heads(layer, input, rows, true, act);
        project_gate(layer, input, rows, act);
      }
      std::vector<gpu::AttendStep> left;  // to be attended together
      each(group, [&](const ModelStep& step, std::int64_t row) {
        const Activations own = row_of(layer, act, row);
        if (recurrent) {
          backend_->gated_delta(weights_.layers[static_cast<std::size_t>(layer)].delta.layer,
                                step.cache->advance(layer, 1), own.q, own.k, own.v, own.output_gate, 1, own.mixed,
                                stream);
          return;
        }
        const std::int64_t position = step.cache->tokens(layer);
        enter(layer, *step.cache, own, 1, true);
        scale_queries(layer, own.q, 1, position);
        const gpu::CacheView view = view_of(layer, *step.cache);
        mix({*backend_, stream, layer, view, step.cache->store(), config_.query_heads, 1, workspace.scratch}, own.q, 1,
            1, own.mixed, *step.attention, &left);
      });
      backend_->attend_together(left, config_.query_heads, stream);
      if (config_.kind(layer) == LayerKind::global) {
        each(group, [&](const ModelStep& step, std::int64_t) { fetch_ahead(layer, *step.cache); });
      }
      add_attention_output(layer, act, act.mixed, act.hidden, rows);
      const std::vector<ExpertTokens> chosen = mlp(layer, act, act.hidden, rows, {});
      each(group, [&](const ModelStep& step, std::int64_t row) {
        show_experts(layer, chosen, static_cast<std::int32_t>(row), step.cache->tokens(), *step.attention);
        flag_nonfinite(act.hidden + row * H, H, layer, flags[static_cast<std::size_t>(row)]);
      });
      if (together) together->part_ends();
    });
  }
  each_group([&](std::span<ModelStep> group, std::span<NanFlag> flags) {
    const std::int64_t vocab = config_.vocab_size;
    output_norm(act, act.hidden, static_cast<int>(group.size()));
    output(workspace, act, static_cast<int>(group.size()));
    each(group, [&](const ModelStep& step, std::int64_t row) {
      const NanFlag& flag = flags[static_cast<std::size_t>(row)];
      const float* const logits = workspace.logits.as<float>() + row * vocab;
      flag_logits(logits, 1, flag);
      bring_flag(flag);  // first, so that who reads the logits waits for both
      step.read(logits);
      require_finite(flag, step.cache->tokens());
      step.cache->commit();
    });
  });
}

}  // namespace hayloft::runtime
