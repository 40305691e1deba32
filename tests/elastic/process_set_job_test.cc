// Process sets in a whole job, through the loss of a worker: what each rule makes of them.
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>

#include "elastic/job.h"

namespace hvd::test {
namespace {

using SetPtr = std::unique_ptr<hvd_process_set, void (*)(hvd_process_set*)>;

struct Seen {
  uint64_t worker = 0;
  int32_t rank = -1;
  // By rule, after the loss: how many take part in an allreduce of ones, or minus the status.
  std::map<hvd_set_rule, int64_t> sums;
  std::map<hvd_set_rule, std::string> messages;
};

class Member {
 public:
  explicit Member(uint64_t worker) { seen_.worker = worker; }

  Seen run(hvd_options* options, uint64_t victim) {
    victim_ = victim;
    hvd_error error = HVD_ERROR_INIT;
    EXPECT_EQ(hvd_init(options, &context_, &error), HVD_OK) << error.message;
    if (context_ == nullptr) return seen_;
    for (const hvd_set_rule rule : {HVD_SET_RULE_WORKERS, HVD_SET_RULE_RANKS, HVD_SET_RULE_LOCAL,
                                    HVD_SET_RULE_CROSS, HVD_SET_RULE_END}) {
      const bool by_place = rule == HVD_SET_RULE_LOCAL || rule == HVD_SET_RULE_CROSS;
      const int32_t ranks[] = {0, 1, 2, 3};
      hvd_process_set* set = nullptr;
      EXPECT_EQ(hvd_process_set_create(context_, ("rule " + std::to_string(rule)).c_str(),
                                       by_place ? nullptr : ranks, by_place ? 0 : 4, rule, &set, &error),
                HVD_OK)
          << error.message;
      sets_.emplace(rule, SetPtr(set, hvd_process_set_destroy));
    }
    hvd_run(
        context_, nullptr, [](void* self) { return static_cast<Member*>(self)->train(); }, this, &error);
    sets_.clear();
    hvd_shutdown(context_, 60 * HVD_SECOND, nullptr);
    hvd_destroy(context_);
    return seen_;
  }

 private:
  hvd_status sum(hvd_set_rule rule, int64_t* ret_sum, hvd_error* error) {
    hvd_tensor tensor = HVD_TENSOR_INIT;
    int64_t one = 1;
    tensor.data = &one;
    tensor.dtype = HVD_DTYPE_INT64;
    hvd_request request = HVD_REQUEST_INIT;
    request.collective = HVD_COLLECTIVE_ALLREDUCE;
    request.name = "members";
    request.inputs = request.outputs = &tensor;
    request.process_set = sets_.at(rule).get();
    hvd_op* op = nullptr;
    hvd_status status = hvd_submit(context_, &request, &op, error);
    if (status == HVD_OK) status = hvd_op_wait(op, HVD_DEFAULT_TIMEOUT, error);
    hvd_op_destroy(op);
    *ret_sum = one;
    return status;
  }

  hvd_status train() {
    const bool lost = hvd_generation(context_) > 1;
    if (lost) seen_.rank = hvd_rank(context_);
    for (const auto& [rule, set] : sets_) {
      int64_t members = 0;
      hvd_error error = HVD_ERROR_INIT;
      const hvd_status status = sum(rule, &members, &error);
      if (status == HVD_PEER_LOST) return status;
      if (!lost) {
        EXPECT_EQ(status, HVD_OK) << error.message;
        EXPECT_EQ(members, rule == HVD_SET_RULE_LOCAL   ? 2
                           : rule == HVD_SET_RULE_CROSS ? 2
                                                        : 4)
            << "rule " << rule;
        continue;
      }
      seen_.sums[rule] = status == HVD_OK ? members : -status;
      seen_.messages[rule] = error.message;
    }
    const hvd_status status = hvd_barrier(context_, "all sets were used", nullptr);
    if (lost || status != HVD_OK) return status;
    if (seen_.worker == victim_) {
      EXPECT_EQ(hvd_abort(context_, "the test says so", nullptr), HVD_OK);
      return HVD_CLOSED;
    }
    return hvd_barrier(context_, "the victim does not come", nullptr);
  }

  Seen seen_;
  uint64_t victim_ = 0;
  hvd_context* context_ = nullptr;
  std::map<hvd_set_rule, SetPtr> sets_;
};

// Ranks 0 and 1 are host a's, 2 and 3 host b's.
TEST(ProcessSetJob, EachRuleThroughALoss) {
  for (const uint64_t victim : {1U, 3U}) {
    std::mutex mutex;
    std::map<uint64_t, Seen> all;
    Job job("a:2,b:2", {{"np", "4"}, {"min_np", "3"}, {"restart", "false"}},
            [&](const WorkerSeat& seat, hvd_options* options) {
              const Seen seen = Member(seat.worker).run(options, victim);
              const std::lock_guard lock(mutex);
              all[seat.worker] = seen;
            });
    job.start();
    std::string sentence;
    EXPECT_EQ(job.wait(&sentence), HVD_OK) << sentence;
    const std::lock_guard lock(mutex);
    std::map<std::string, int> hosts;
    for (auto& [worker, seen] : all) {
      if (worker == victim) continue;
      SCOPED_TRACE("worker " + std::to_string(worker) + " after the loss of " + std::to_string(victim));
      EXPECT_EQ(seen.sums[HVD_SET_RULE_WORKERS], 3);
      EXPECT_EQ(seen.sums[HVD_SET_RULE_RANKS], 3);
      EXPECT_EQ(seen.sums[HVD_SET_RULE_END], -HVD_INVALID) << seen.messages[HVD_SET_RULE_END];
      EXPECT_NE(seen.messages[HVD_SET_RULE_END].find("rule 5"), std::string::npos)
          << seen.messages[HVD_SET_RULE_END];
      ++hosts["local " + std::to_string(seen.sums[HVD_SET_RULE_LOCAL])];
      ++hosts["cross " + std::to_string(seen.sums[HVD_SET_RULE_CROSS])];
    }
    // One host is left with one worker; of the two local ranks one is left on one host alone.
    const std::map<std::string, int> expected = {
        {"local 1", 1}, {"local 2", 2}, {"cross 1", 1}, {"cross 2", 2}};
    EXPECT_EQ(hosts, expected);
  }
}

}  // namespace
}  // namespace hvd::test
