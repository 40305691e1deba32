// Fuzzes a worker's session: sequences of frames from a driver gone mad, among calls of its own worker.
#include "fuzz.h"
#include "session/session_core.h"

namespace hvd::fuzz {
namespace {

using namespace session;

/// Holds what comes out of a core against what session_core.h promises.
class Watch {
 public:
  explicit Watch(SessionCore& core) : core_(core) {}
  void take(SessionCore::Actions actions) {
    for (const Action& action : actions) {
      if (std::holds_alternative<Close>(action)) continue;
      if (!std::holds_alternative<LogLine>(action)) HVD_PROMISE(!ended_);
      if (std::holds_alternative<End>(action)) ended_ = true;
      if (const auto* send = std::get_if<Send>(&action)) {
        HVD_PROMISE(send->envelope.sequence == ++sent_);
        wire::encode(send->envelope);
      }
      if (const auto* deliver = std::get_if<Deliver>(&action)) {
        const Assignment& assignment = deliver->assignment;
        HVD_PROMISE(assignment.generation > generation_);  // contract 11
        generation_ = assignment.generation;
        const auto size = static_cast<int32_t>(assignment.members.size());
        HVD_PROMISE(assignment.rank >= 0 && assignment.rank < size);
        HVD_PROMISE(assignment.root >= 0 && assignment.root < size);
      }
    }
    HVD_PROMISE(core_.epoch_word() / 2 >= epoch_);  // contract 2
    epoch_ = core_.epoch_word() / 2;
    HVD_PROMISE(core_.ended() == ended_);
  }
  bool ended() const { return ended_; }
  uint64_t generation() const { return generation_; }

 private:
  SessionCore& core_;
  bool ended_ = false;
  uint64_t sent_ = 0, generation_ = 0, epoch_ = 0;
};

template <class Table>
wire::EnvelopeT wrap(Decisions& decisions, uint64_t& sequence, Table body) {
  const bool odd = decisions.upto(31) == 31;
  auto envelope = wire::envelope(odd ? decisions.text(4) : "job", odd ? decisions.number() : 5,
                                 decisions.number(), std::move(body));
  envelope.sequence = odd ? decisions.number() : ++sequence;
  return envelope;
}

wire::EnvelopeT message(Decisions& decisions, uint64_t& sequence) {
  switch (decisions.upto(8)) {
    case 0: {
      wire::WelcomeT body;
      body.heartbeat_interval_ms = static_cast<int64_t>(decisions.number());
      body.heartbeat_timeout_ms = body.heartbeat_interval_ms + static_cast<int64_t>(decisions.upto(50));
      body.epoch = decisions.number();
      body.takes_stalls = decisions.coin();
      return wrap(decisions, sequence, body);
    }
    case 1: {
      wire::RefusedT body;
      body.code = static_cast<wire::Refusal>(decisions.upto(7));
      body.reason = decisions.text(8);
      return wrap(decisions, sequence, body);
    }
    case 2: {
      wire::AssignmentT body;
      body.epoch = decisions.number();
      body.root = static_cast<int32_t>(decisions.number());
      for (uint32_t left = decisions.upto(5); left > 0; --left) {
        body.members.push_back(std::make_unique<wire::MemberT>());
        wire::MemberT& member = *body.members.back();
        member.worker = decisions.coin() ? 5 : decisions.number();
        member.host = decisions.text(6);
        member.local_rank = static_cast<int32_t>(decisions.number());
        member.has_state = decisions.coin();
        member.revision = decisions.number();
      }
      return wrap(decisions, sequence, std::move(body));
    }
    case 3: {
      wire::AbortT body;
      body.rank = static_cast<int32_t>(decisions.number());
      body.silence_ns = static_cast<int64_t>(decisions.number());
      body.reason = decisions.text(8);
      return wrap(decisions, sequence, body);
    }
    case 4: {
      wire::HostsUpdatedT body;
      body.epoch = decisions.number();
      body.interrupt = decisions.coin();
      body.added = {decisions.text(5)};
      return wrap(decisions, sequence, body);
    }
    case 5: {
      wire::KvValueT body;
      body.key = decisions.text(3);
      body.status = static_cast<int32_t>(decisions.number());
      return wrap(decisions, sequence, body);
    }
    case 6: {
      wire::JobEndedT body;
      body.success = decisions.coin();
      return wrap(decisions, sequence, body);
    }
    case 7: return wrap(decisions, sequence, wire::HeartbeatAckT{});
    default: return wrap(decisions, sequence, wire::HelloT{});  // not for a worker
  }
}

/// Whether or not the session tells broken links from peers that don't fit.
template <class Core>
SessionCore::Actions failure(Core& core, uint64_t generation, int32_t rank, bool unfit, Time now) {
  if constexpr (requires { core.failure(generation, rank, "f", unfit, now); }) {
    return core.failure(generation, rank, "f", unfit, now);
  } else {
    return core.failure(generation, rank, "f", now);
  }
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  CoreConfig config;
  config.driver = "driver:1";
  config.job = "job";
  config.host = "a";
  config.worker = 5;
  SessionCore core(config);
  Watch watch(core);
  Decisions decisions(data);
  Time now{seconds(1000)};
  uint64_t sequence = 0, get = 0;
  watch.take(core.connected(seconds(5), now));
  for (int steps = 0; !decisions.over() && steps < 1000; ++steps) {
    switch (decisions.upto(15)) {
      case 0: watch.take(core.frame(decisions.some(300), now)); break;
      case 1: watch.take(core.ready({}, now)); break;
      case 2: watch.take(core.taken(watch.generation(), now)); break;
      case 3: watch.take(core.synced(watch.generation(), decisions.number(), now)); break;
      case 4: {
        const auto rank = static_cast<int32_t>(decisions.number());
        watch.take(failure(core, watch.generation(), rank, decisions.coin(), now));
        break;
      }
      case 5: watch.take(core.stall(watch.generation(), decisions.text(9), {1, 2}, seconds(61), now)); break;
      case 6: watch.take(core.kv_set(watch.generation(), decisions.text(3), decisions.some(9), now)); break;
      case 7: watch.take(core.kv_get(++get, watch.generation(), decisions.text(3), now)); break;
      case 8:
        now += milliseconds(decisions.upto(70000));
        watch.take(core.tick(now));
        if (!core.ended() && core.next_tick()) HVD_PROMISE(*core.next_tick() > now - seconds(1));
        break;
      case 9:
        if (decisions.upto(7) == 7) watch.take(core.channel_closed(Status(HVD_DRIVER_LOST, "closed"), now));
        break;
      case 10:
        if (decisions.upto(7) == 7) watch.take(core.done(decisions.number(), now));
        break;
      default: {
        const auto bytes = wire::encode(message(decisions, sequence));
        watch.take(core.frame(bytes, now));
      }
    }
  }
  watch.take(core.close(seconds(1), now));
}

std::vector<Bytes> seeds() {
  // Welcome (interval 8 ms, time-out 12 ms), ready, an assignment with this worker in it, taken, synced, an
  // abort.
  const Bytes welcome = {11, 0, 8, 4, 1, 0, 0, 0};
  const Bytes join = {1, 11, 2, 1, 0, 2, 0, 3, 1, 'h', 0, 0, 1, 1, 1, 'a', 0, 0, 0, 0, 1, 2, 3, 1};
  const Bytes lost = {11, 3, 1, 0, 0, 0, 1};
  const auto joined = [](std::initializer_list<Bytes> parts) {
    Bytes all;
    for (const Bytes& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  };
  return {welcome,
          joined({welcome, join}),
          joined({welcome, join, lost, join, lost}),
          joined({welcome, {11, 4, 3, 1, 1, 'b', 0, 0}, join, {8, 0, 1, 0}}),
          {0, 12, 0, 1, 2, 3, 4}};
}

}  // namespace hvd::fuzz
