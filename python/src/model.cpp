#include "python/src/model.h"

#include <algorithm>

#include "python/src/bindings.h"
#include "runtime/chat/load_chat_template.h"
#include "runtime/decode/load_tokenizer.h"
#include "runtime/tokenizer/end_of_turn.h"

namespace hayloft::python {
namespace {

runtime::WeightForm weight_form(const std::string& text) {
  using runtime::WeightForm;
  for (const WeightForm form : {WeightForm::stored, WeightForm::f16, WeightForm::q8, WeightForm::q4}) {
    if (text == runtime::name(form)) return form;
  }
  fail("weights '{}': must be one of stored, f16, q8, q4", text);
}

runtime::ExpertPlace expert_place(const std::string& text) {
  using runtime::ExpertPlace;
  for (const ExpertPlace place : {ExpertPlace::automatic, ExpertPlace::device, ExpertPlace::link, ExpertPlace::near}) {
    if (text == runtime::name(place)) return place;
  }
  fail("experts '{}': must be one of auto, device, link, near", text);
}

// Messages and variables are JSON texts.
std::string chat_prompt(const OpenModel& model, const std::string& messages, const std::string& variables, bool tools,
                        bool generation_prompt) {
  const runtime::ChatTemplate own = model_template(model);
  if (tools && !own.takes_tools()) {
    fail("{}: the chat template takes no notice of tools: the model would not see them", model.path.string());
  }
  runtime::ChatOptions options;
  options.variables = variables;
  options.add_generation_prompt = generation_prompt;
  return own.render_json(messages, options);
}

py::dict config_dict(const runtime::ModelConfig& config) {
  py::dict all;
  all["architecture"] = config.architecture;
  all["vocab_size"] = config.vocab_size;
  all["hidden_size"] = config.hidden_size;
  all["layers"] = config.layers;
  all["query_heads"] = config.query_heads;
  all["kv_heads"] = config.kv_heads;
  all["head_dim"] = config.head_dim;
  all["sliding_window"] = config.sliding_window;
  all["recurrent"] = config.recurrent;
  all["max_positions"] = config.max_positions;
  all["eos_tokens"] = config.eos_tokens;
  return all;
}

}  // namespace

OpenModel::OpenModel(std::shared_ptr<Machine> on, const std::filesystem::path& from, const std::string& weights,
                     const std::string& experts, std::int64_t positions, bool head)
    : machine(std::move(on)),
      path(from),
      tokenizer(runtime::load_tokenizer(path)),
      model(path, *machine->backend, weight_form(weights), {}, expert_place(experts), head),
      arena(machine->make_arena()) {
  if (positions < 0) fail("positions {}: must be 0, as many as the model was made for, or more", positions);
  if (positions == 0) return;
  const std::vector<float> before = model.config().global_table.inverse_frequency;
  model.expect_positions(positions);
  if (model.config().global_table.inverse_frequency != before) stretched_to = positions;
}

void OpenModel::require_rope_of_contexts() const {
  if (stretched_to == 0) return;
  fail(
      "{}: its RoPE is made for {} positions, and saved contexts are read with that of the model as it is; "
      "make the Model without positions",
      path.string(), stretched_to);
}

runtime::ChatTemplate model_template(const OpenModel& model) {
  const auto own = runtime::load_chat_template(model.path);
  if (!own) fail("{}: the model has no chat template", model.path.string());
  return *own;
}

void bind_model(py::module_& module) {
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<OpenModel, std::shared_ptr<OpenModel>>(module, "OpenModel")
      .def(py::init([](std::shared_ptr<Machine> machine, const std::string& path, const std::string& weights,
                       const std::string& experts, std::int64_t positions, bool head) {
             const py::gil_scoped_release released;
             return std::make_shared<OpenModel>(std::move(machine), path, weights, experts, positions, head);
           }),
           py::arg("machine").none(false), py::arg("path"), py::arg("weights"), py::arg("experts"),
           py::arg("positions"), py::arg("head"))
      .def_property_readonly("path", [](const OpenModel& model) { return system_text(model.path.string()); })
      .def_property_readonly("config", [](const OpenModel& model) { return config_dict(model.model.config()); })
      .def_property_readonly("notes",
                             [](const OpenModel& model) {
                               py::list notes;  // which begin with the name of a file
                               for (const std::string& note : model.model.notes()) notes.append(system_text(note));
                               return notes;
                             })
      .def_property_readonly("weight_bytes", [](const OpenModel& model) { return model.model.weight_bytes(); })
      .def_property_readonly("end_of_turn",
                             [](const OpenModel& model) { return runtime::end_of_turn_tokens(model.tokenizer); })
      .def(
          "encode_prompt",
          [](const OpenModel& model, const std::string& text) { return model.tokenizer.encode_prompt(text); }, unlocked)
      .def(
          "encode_continuation",
          [](const OpenModel& model, const std::string& text) { return model.tokenizer.encode_continuation(text); },
          unlocked)
      .def("decode",
           [](const OpenModel& model, const std::vector<std::int32_t>& tokens, bool special, bool continued) {
             // Weights may be padded to more tokens than the tokenizer has, which a model may draw and which have no
             // text.
             const std::int64_t known =
                 std::max<std::int64_t>(model.model.config().vocab_size, model.tokenizer.vocab_size());
             for (const std::int32_t token : tokens) {
               if (token < 0 || token >= known) {
                 fail("token id {} is outside the model's vocabulary of {}: it has no text", token, known);
               }
             }
             return py::bytes(model.tokenizer.decode(tokens, special, continued));
           })
      .def("chat_prompt", chat_prompt, unlocked);
}

}  // namespace hayloft::python
