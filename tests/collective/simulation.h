// Engines of several ranks over a transport without threads: a random source decides which message arrives
// and which operation ends next, so that a history can be replayed from its seed.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "backend/board.h"
#include "board_memory.h"
#include "collective/engine.h"
#include "collective/gathering.h"

namespace hvd::collective::testing {

class Simulation {
 public:
  Simulation(int32_t size, uint64_t seed) : random(seed), size_(size) {}
  ~Simulation() {
    for (auto& engine : engines) engine->fail(Status(HVD_CLOSED, "the history is over"));
    while (step()) {}
    engines.clear();
  }

  void add_engine(EngineConfig config) {
    const auto rank = static_cast<int32_t>(engines.size());
    backends_.push_back(std::make_unique<Backend>(*this, rank));
    config.rank = rank;
    engines.push_back(Engine::open(std::move(config), *backends_.back()));
  }

  /// The engines meet on a board.
  void use_board() {
    notes_ = hvd::testing::board_notes(static_cast<size_t>(size_));
    words_ = std::make_unique<backend::BoardWords>();
  }

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }
  bool chance(int of) { return pick(1, of) == 1; }

  /// One event of the transport; false if nothing is on its way.
  bool step() {
    std::vector<std::pair<int32_t, int32_t>> events;  // source, destination; -1: an operation's end
    for (const auto& [link, messages] : messages_) {
      if (!messages.empty()) events.push_back(link);
    }
    for (int32_t r = 0; r < size_; ++r) {
      if (!done_[r].empty()) events.emplace_back(-1, r);
    }
    if (events.empty()) return false;
    const auto [source, to] = events[static_cast<size_t>(pick(0, static_cast<int>(events.size()) - 1))];
    if (source < 0) {
      const auto [op, status] = done_[to].front();
      done_[to].pop_front();
      hvd_error error = HVD_ERROR_INIT;
      status.write_to(&error);
      op.done(op.done_context, status.code, status.ok() ? nullptr : &error);
    } else {
      auto& queue = messages_[{source, to}];
      const std::vector<uint8_t> data = std::move(queue.front());
      queue.pop_front();
      engines[static_cast<size_t>(to)]->deliver(source, data);
    }
    return true;
  }

  std::mt19937_64 random;
  std::vector<std::shared_ptr<Engine>> engines;
  /// While an engine's thread waits; gives false when nothing can happen any more.
  std::function<bool()> advance = [this] { return step(); };
  std::map<int32_t, size_t> sent;  // messages, by source
  size_t ran = 0;                  // operations
  size_t bytes = 0;                // of messages

 private:
  class Backend final : public backend::Instance {
   public:
    Backend(Simulation& simulation, int32_t rank) : simulation_(simulation), rank_(rank) {
      description_.name = "simulation";
      description_.memories = description_.dtypes = description_.collectives = ~uint64_t{0};
      description_.messages = true;
      description_.local = true;
    }
    const backend::Description& description() const override { return description_; }
    Status offers(std::vector<Offer>*) override { return {}; }
    Status connect(uint64_t, int32_t, const std::vector<backend::Member>&, Duration) override { return {}; }
    Status submit(const hvd_backend_op& op, std::span<const backend::Part> parts) override {
      if (aborted_) return Status(HVD_PEER_LOST, "aborted");
      EXPECT_GT(op.sequence, last_) << "rank " << rank_;
      last_ = op.sequence;
      auto& all = simulation_.gathering_;
      all[op.sequence].add(rank_, simulation_.size_, op, parts);
      if (!all[op.sequence].complete()) return {};
      all[op.sequence].run();
      ++simulation_.ran;
      for (auto& [rank, part] : all[op.sequence].parts) simulation_.done_[rank].emplace_back(part, Status());
      all.erase(op.sequence);
      return {};
    }
    Status send_message(int32_t to, std::span<const uint8_t> data) override {
      if (aborted_) return Status(HVD_PEER_LOST, "aborted");
      ++simulation_.sent[rank_];
      simulation_.bytes += data.size();
      simulation_.messages_[{rank_, to}].emplace_back(data.begin(), data.end());
      return {};
    }
    void progress(const std::atomic<bool>& done, Time) override {
      while (!done && simulation_.advance()) {}
    }
    std::shared_ptr<backend::Board> board() override {
      if (simulation_.notes_ == nullptr) return nullptr;
      std::vector<backend::BoardNotes*> notes;
      for (int32_t r = 0; r < simulation_.size_; ++r) notes.push_back(&simulation_.notes_[r]);
      return std::make_shared<backend::Board>(std::move(notes), rank_, simulation_.words_.get(), false,
                                              nullptr, simulation_.notes_);
    }
    void abort(uint64_t) override {
      if (aborted_) return;
      aborted_ = true;
      for (auto& [sequence, gathering] : simulation_.gathering_) {
        const auto it = gathering.parts.find(rank_);
        if (it == gathering.parts.end()) continue;
        simulation_.done_[rank_].emplace_back(it->second, Status(HVD_PEER_LOST, "aborted"));
        gathering.parts.erase(it);
      }
    }
    void disconnect() override {}
    std::string detail() const override { return ""; }

   private:
    Simulation& simulation_;
    const int32_t rank_;
    backend::Description description_;
    uint64_t last_ = 0;
    bool aborted_ = false;
  };

  const int32_t size_;
  std::shared_ptr<backend::BoardNotes[]> notes_;
  std::unique_ptr<backend::BoardWords> words_;
  std::vector<std::unique_ptr<Backend>> backends_;
  std::map<std::pair<int32_t, int32_t>, std::deque<std::vector<uint8_t>>>
      messages_;                                                           // by source, destination
  std::map<int32_t, std::deque<std::pair<hvd_backend_op, Status>>> done_;  // by rank
  std::map<uint64_t, Gathering> gathering_;                                // by sequence
};

}  // namespace hvd::collective::testing
