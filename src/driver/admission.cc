// Lets workers in that no driver started: whoever knows the job's secret may bring one.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/held_up.h"
#include "base/text.h"
#include "driver/supervisor_impl.h"
#include "wire/sequence.h"
#include "wire/tls.h"

namespace hvd::driver {
namespace {

constexpr size_t kLongestHost = 255;
constexpr Duration kLook = std::chrono::milliseconds(20);
constexpr Duration kLinger = std::chrono::seconds(5);
constexpr size_t kMostApplicants = 256;  // that wait at a time for others to prove that they live

void answer(wire::Channel& channel, const std::string& job, auto body) {
  wire::EnvelopeT message = wire::envelope(job, 0, 0, std::move(body));
  wire::Sequence().number(message);
  channel.send(wire::encode(message));
  channel.close(kLinger);
}

}  // namespace

/// A worker that waits until it is known whether the one in its place lives.
struct Supervisor::Applicant {
  explicit Applicant(Loop& loop) : timer(loop) {}
  std::shared_ptr<wire::Channel> channel;
  std::string host;
  int32_t slot = -1;
  uint64_t occupant = 0;
  Time asked{}, until{};
  HeldUp held_up;  // between two looks
  Loop::Timer timer;
};

/// An applicant that comes again and again must not fill the log.
void Supervisor::note_refused(const wire::Channel& channel, const std::string& host, const std::string& why) {
  if (refusals_.pass(now()))
    logger_->warning("{}: a worker of host {} was not let in: {}", channel.peer(), host, why);
}

bool Supervisor::guest(const std::shared_ptr<wire::Channel>& channel, const wire::EnvelopeT& message) {
  const auto* apply = message.body.AsApply();
  if (apply == nullptr) return config_.guest && config_.guest(channel, message);
  if (channel->identity() != wire::kAdmissionIdentity) return false;
  const auto reject = [&](wire::Refusal code, const std::string& why) {
    note_refused(*channel, printable(apply->host, kLongestHost), why);
    wire::RefusedT refused;
    refused.code = code;
    refused.reason = why;
    answer(*channel, config_.settings.job, std::move(refused));
    return true;
  };
  if (const std::string why = wire::foreign_protocol("it", apply->protocol, apply->library); !why.empty())
    return reject(wire::Refusal::Protocol, why);
  if (apply->host.empty() || apply->host.size() > kLongestHost || printable(apply->host) != apply->host) {
    return reject(wire::Refusal::Unknown, "its host's name is empty, too long or not printable");
  }
  if (apply->slot < -1 || apply->slot >= kMostSlots) {
    return reject(wire::Refusal::Unknown,
                  fmt::format("slot {}: expected 0 to {}, or -1 for any", apply->slot, kMostSlots - 1));
  }
  const auto applicant = std::make_shared<Applicant>(loop_);
  applicant->channel = channel;
  applicant->host = apply->host;
  applicant->slot = apply->slot;
  // Whoever goes away meanwhile is found out when its worker does not become ready (start_timeout).
  channel->set_handlers({[](std::span<const uint8_t>) {}, [](const Status&) {}});
  let_in(applicant, true);
  return true;
}

void Supervisor::let_in(const ApplicantPtr& applicant, bool may_ask) {
  const std::string& job = config_.settings.job;
  const auto reject = [&](const std::string& why) {
    note_refused(*applicant->channel, applicant->host, why);
    wire::RefusedT refused;
    refused.code = finish_ ? wire::Refusal::Ended : wire::Refusal::Busy;
    refused.reason = why;
    answer(*applicant->channel, job, std::move(refused));
  };
  if (closed_ || finish_ || !membership_)
    return reject(finish_ ? "the job has ended" : "the driver is starting");
  membership::Arrival arrival;
  std::vector<membership::Action> actions =
      membership_->worker_arrived(applicant->host, applicant->slot, clock_.now(), &arrival);
  if (arrival.worker == 0) {
    // Slow is not dead (contract 19): one whose process is seen to run proves nothing.
    const bool doubtful = arrival.occupant != 0 && server_->life(arrival.occupant) != launch::Life::kRunning;
    const bool ask =
        doubtful && may_ask && applicants_.size() < kMostApplicants && server_->probe(arrival.occupant);
    apply(std::move(actions));
    if (!ask) return reject(arrival.refusal);
    // contract 11: twice the same place. The older one proves that it lives, or is lost.
    const Settings& s = config_.settings;
    applicant->occupant = arrival.occupant;
    applicant->asked = now();
    applicant->until =
        applicant->asked + std::min<Duration>(2 * s.heartbeat_interval + seconds(1), s.heartbeat_timeout);
    applicants_.push_back(applicant);
    return await_proof(applicant, arrival.refusal);
  }
  Worker& worker = add_worker(arrival.worker);
  worker.host = applicant->host;
  worker.slot = arrival.slot;
  worker.process = false;  // it is somebody else's
  note(HVD_LOG_INFO,
       fmt::format("{} came by itself from {}", name_of(arrival.worker), applicant->channel->peer()));
  wire::AdmittedT admitted;
  admitted.worker = arrival.worker;
  admitted.key = wire::key_text(config_.settings.secret, wire::worker_identity(arrival.worker));
  admitted.job = job;
  admitted.host = applicant->host;
  admitted.slot = arrival.slot;
  answer(*applicant->channel, job, std::move(admitted));
  apply(std::move(actions));
}

void Supervisor::await_proof(const ApplicantPtr& applicant, const std::string& refusal) {
  applicant->until += applicant->held_up.at(now(), config_.settings.heartbeat_interval);
  const bool lives = server_->heard_since(applicant->occupant, applicant->asked);
  const bool gone = !membership_->expects(applicant->occupant);
  if (!lives && !gone && now() < applicant->until) {
    applicant->held_up.look_after(kLook, now());
    applicant->timer.start(kLook, [this, applicant, refusal] { await_proof(applicant, refusal); });
    return;
  }
  std::erase(applicants_, applicant);
  if (!lives && !gone) {
    const std::string why =
        fmt::format("gave no sign of life within {} s when another one came for its place",
                    seconds_text(now() - applicant->asked));
    server_->dismiss(applicant->occupant, wire::Refusal::Evicted, why);
    worker_lost(applicant->occupant, membership::LossKind::kSilent, why);
  }
  let_in(applicant, false);
}

void Supervisor::drop_applicants() {
  for (const ApplicantPtr& applicant : std::exchange(applicants_, {})) {
    applicant->timer.cancel();
    applicant->channel->close(Duration(0));
  }
}

}  // namespace hvd::driver
