#include <faiss/IndexHNSW.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <queue>

#include "index/ann/codes.h"
#include "index/ann/graph_storage.h"

// HNSW: Faiss builds the graph over keys that lie in the store, or over codes; searching it is ours, for it has to read
// rows through a view that changes from session to session, and to count what it reads.
namespace hayloft::index {
namespace {

// Remembers the keys that a search has met. One per thread, since a search is over before the next begins;
// clearing it costs nothing but once in 65,535 searches.
class Seen {
 public:
  void start(std::size_t keys) {
    if (marks_.size() < keys) marks_.resize(keys);
    if (++mark_ == 0) {
      std::fill(marks_.begin(), marks_.end(), std::uint16_t{0});
      mark_ = 1;
    }
  }
  bool first_time(std::int32_t position) {
    std::uint16_t& mark = marks_[static_cast<std::size_t>(position)];
    if (mark == mark_) return false;
    mark = mark_;
    return true;
  }

 private:
  std::vector<std::uint16_t> marks_;
  std::uint16_t mark_ = 0;
};

class GraphHead : public AnnHead {
 public:
  GraphHead(AnnParts parts, const AnnTraining& training) {
    std::vector<float> mean = mean_key(training.rows, training.tokens, training.query_aware);
    const std::vector<float> sample = sample_keys(training.rows, training.tokens, 65536, mean.data());
    auto space = std::make_shared<KeySpace>(std::move(mean), std::move(parts.chain), sample);
    const std::vector<float> keys = space->transform(sample);
    if (parts.codes) parts.codes->train(static_cast<FaissId>(keys.size()) / space->dim(), keys.data());
    float norm = 0;
    if (training.query_aware) norm = largest_norm(keys, space->dim());
    storage_ = std::make_unique<GraphStorage>(std::move(space), std::move(parts.codes), norm);
    make_graph(parts.links);
  }
  GraphHead(const GraphHead& other) : storage_(std::make_unique<GraphStorage>(*other.storage_)) {
    make_graph(other.graph_->hnsw.nb_neighbors(1));
    graph_->hnsw = other.graph_->hnsw;
    graph_->ntotal = other.graph_->ntotal;
  }

  GraphHead(AnnParts parts, int head_dim, IndexReader& in) {
    const int links = parts.links;
    storage_ = std::make_unique<GraphStorage>(std::move(parts), head_dim, in);
    make_graph(links);
    read_graph(in);
  }
  void write(ByteWriter& out) const override {
    storage_->write(out);
    const faiss::HNSW& hnsw = graph_->hnsw;
    out.number(static_cast<std::int32_t>(hnsw.entry_point));
    out.number(static_cast<std::int32_t>(hnsw.max_level));
    out.array(std::span<const std::int32_t>(hnsw.levels.data(), hnsw.levels.size()));
    out.array(std::span<const std::int32_t>(hnsw.neighbors.data(), hnsw.neighbors.size()));
  }

  std::unique_ptr<AnnHead> clone() const override { return std::make_unique<GraphHead>(*this); }
  std::int64_t tokens() const override { return graph_->ntotal; }
  bool exact() const override { return storage_->codes() == nullptr; }

  void add(const KeyRows& rows, std::int64_t end) override {
    storage_->read_from(&rows);
    const std::vector<float> keys = storage_->space().keys(rows, tokens(), end);
    graph_->add(end - tokens(), keys.data());
    storage_->read_from(nullptr);
  }

  void search(const KeyRows& rows, const AnnTask& task, BestHits& best, AnnCost& cost) const override {
    if (graph_->ntotal == 0) return;
    const KeySpace::Query query = storage_->space().query(task.q);
    std::unique_ptr<faiss::DistanceComputer> codes;
    if (storage_->codes() != nullptr) {
      codes.reset(storage_->codes()->get_distance_computer());
      codes->set_query(query.q.data());
    }
    std::uint64_t keys = 0;
    std::uint64_t links = 0;
    const auto score = [&](const std::int32_t* positions, int n, float* scores) {
      keys += static_cast<std::uint64_t>(n);
      if (!codes) return score_rows(rows, task.q, positions, n, scores);
      for (int i = 0; i < n; ++i) scores[i] = (*codes)(positions[i]) + query.offset;
    };
    const std::size_t sought =
        std::max(best.capacity(), static_cast<std::size_t>(task.ef > 0 ? task.ef : 2 * best.capacity()));
    BestHits near(sought);
    beam(score, links, descend(score, links), near);
    for (const Hit& hit : near.take()) {
      if (hit.position < task.limit) best.offer(hit.score, hit.position);
    }
    cost.keys += keys;
    cost.index_bytes +=
        links * sizeof(faiss::HNSW::storage_idx_t) + (codes ? keys * storage_->codes()->sa_code_size() : 0);
    if (!codes) cost.row_bytes += keys * rows.key_bytes();
  }

  std::uint64_t bytes() const override {
    const faiss::HNSW& hnsw = graph_->hnsw;
    return storage_->bytes() + hnsw.neighbors.size() * sizeof(hnsw.neighbors[0]) +
           hnsw.offsets.size() * sizeof(hnsw.offsets[0]) + hnsw.levels.size() * sizeof(hnsw.levels[0]);
  }

 private:
  static float largest_norm(const std::vector<float>& keys, int d) {
    float largest = 0;
    for (std::size_t i = 0; i < keys.size(); i += static_cast<std::size_t>(d)) {
      float square = 0;
      for (int c = 0; c < d; ++c)
        square += keys[i + static_cast<std::size_t>(c)] * keys[i + static_cast<std::size_t>(c)];
      largest = std::max(largest, square);
    }
    return std::sqrt(largest);
  }

  void make_graph(int links) { graph_ = std::make_unique<faiss::IndexHNSW>(storage_.get(), links); }

  // Levels say how many layers a key is in. A link leads to a key that is in its layer too: what search() relies on.
  void read_graph(IndexReader& in) {
    faiss::HNSW& hnsw = graph_->hnsw;
    const auto keys = static_cast<std::size_t>(storage_->ntotal);
    hnsw.entry_point = in.number<std::int32_t>();
    hnsw.max_level = in.number<std::int32_t>();
    const std::vector<std::int32_t> levels = in.array<std::int32_t>(keys);
    const auto most_levels = static_cast<std::int32_t>(hnsw.cum_nneighbor_per_level.size()) - 1;
    hnsw.offsets.assign(1, 0);
    for (const std::int32_t level : levels) {
      if (level < 1 || level > most_levels) in.damaged("a key is in layers that there are not");
      hnsw.offsets.push_back(hnsw.offsets.back() + static_cast<std::size_t>(hnsw.cum_nb_neighbors(level)));
    }
    const std::vector<std::int32_t> links = in.array<std::int32_t>(hnsw.offsets.back());
    for (std::size_t key = 0; key < keys; ++key) {
      for (int layer = 0; layer < levels[key]; ++layer) {
        const std::size_t end = hnsw.offsets[key] + static_cast<std::size_t>(hnsw.cum_nb_neighbors(layer + 1));
        for (std::size_t i = hnsw.offsets[key] + static_cast<std::size_t>(hnsw.cum_nb_neighbors(layer)); i < end; ++i) {
          if (links[i] < -1 || links[i] >= storage_->ntotal ||
              (links[i] >= 0 && levels[static_cast<std::size_t>(links[i])] <= layer)) {
            in.damaged("a link leads nowhere");
          }
        }
      }
    }
    if (keys > 0 && (hnsw.entry_point < 0 || hnsw.entry_point >= storage_->ntotal ||
                     levels[static_cast<std::size_t>(hnsw.entry_point)] != hnsw.max_level + 1)) {
      in.damaged("its entry point is not in the uppermost layer");
    }
    hnsw.levels.assign(levels.begin(), levels.end());
    hnsw.neighbors.resize(links.size());
    std::copy(links.begin(), links.end(), hnsw.neighbors.data());
    graph_->ntotal = storage_->ntotal;
    graph_->is_trained = true;
  }

  // The neighbours of a key in one layer of the graph, as far as there are any.
  template <class Take>
  void neighbours(std::int32_t position, int layer, std::uint64_t& links, const Take& take) const {
    std::size_t begin = 0;
    std::size_t end = 0;
    graph_->hnsw.neighbor_range(position, layer, &begin, &end);
    for (std::size_t i = begin; i < end; ++i) {
      const std::int32_t next = graph_->hnsw.neighbors[i];
      if (next < 0) break;
      ++links;
      take(next);
    }
  }

  // From the entry point through the upper layers, always to the best neighbour.
  template <class Score>
  Hit descend(const Score& score, std::uint64_t& links) const {
    const faiss::HNSW& hnsw = graph_->hnsw;
    Hit at{0, static_cast<std::int32_t>(hnsw.entry_point)};
    score(&at.position, 1, &at.score);
    std::vector<std::int32_t> next;
    std::vector<float> scores;
    for (int layer = hnsw.max_level; layer > 0; --layer) {
      for (bool moved = true; moved;) {
        moved = false;
        next.clear();
        neighbours(at.position, layer, links, [&](std::int32_t p) { next.push_back(p); });
        scores.resize(next.size());
        score(next.data(), static_cast<int>(next.size()), scores.data());
        for (std::size_t i = 0; i < next.size(); ++i) {
          if (!(scores[i] > at.score)) continue;
          at = {scores[i], next[i]};
          moved = true;
        }
      }
    }
    return at;
  }

  // The lowest layer: goes on from the best key not yet gone on from, until it is worse than all that are kept.
  template <class Score>
  void beam(const Score& score, std::uint64_t& links, Hit from, BestHits& near) const {
    thread_local Seen seen;
    seen.start(static_cast<std::size_t>(graph_->ntotal));
    const auto worse = [](const Hit& a, const Hit& b) {
      return a.score != b.score ? a.score < b.score : a.position > b.position;
    };
    std::priority_queue<Hit, std::vector<Hit>, decltype(worse)> open(worse);
    seen.first_time(from.position);
    open.push(from);
    near.offer(from.score, from.position);
    std::vector<std::int32_t> next;
    std::vector<float> scores;
    while (!open.empty()) {
      const Hit at = open.top();
      if (near.full() && at.score < near.least()) break;
      open.pop();
      next.clear();
      neighbours(at.position, 0, links, [&](std::int32_t p) {
        if (seen.first_time(p)) next.push_back(p);
      });
      scores.resize(next.size());
      score(next.data(), static_cast<int>(next.size()), scores.data());
      for (std::size_t i = 0; i < next.size(); ++i) {
        if (near.full() && scores[i] <= near.least()) continue;
        near.offer(scores[i], next[i]);
        open.push({scores[i], next[i]});
      }
    }
  }

  std::unique_ptr<GraphStorage> storage_;
  std::unique_ptr<faiss::IndexHNSW> graph_;  // does not own the storage
};

}  // namespace

std::unique_ptr<AnnHead> read_graph_head(AnnParts parts, int head_dim, IndexReader& in) {
  return std::make_unique<GraphHead>(std::move(parts), head_dim, in);
}

std::unique_ptr<AnnHead> make_graph_head(AnnParts parts, const AnnTraining& training) {
  return std::make_unique<GraphHead>(std::move(parts), training);
}

}  // namespace hayloft::index
