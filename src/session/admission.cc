// Applies at a driver, over a connection of its own that ends with the answer.
#include "session/admission.h"

#include <fmt/format.h>
#include <unistd.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/text.h"
#include "wire/channel.h"
#include "wire/messages.h"
#include "wire/tls.h"

namespace hvd::session {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(50);  // between two questions whether to give up
constexpr Duration kSlack = std::chrono::seconds(1);

/// What the loop's thread and the caller share.
struct Application {
  explicit Application(AdmissionRequest r) : request(std::move(r)) {}

  void end(Status status) {
    std::lock_guard lock(mutex);
    if (!outcome) outcome = std::move(status);
    changed.notify_all();
  }

  void answered(std::span<const uint8_t> frame) {
    try {
      const wire::EnvelopeT message = wire::decode(frame);
      if (const auto* refused = message.body.AsRefused()) {
        return end(Status(HVD_REFUSED, fmt::format("the driver at {} does not let this worker in: {}",
                                                   request.drivers, printable(refused->reason))));
      }
      const auto* admitted = message.body.AsAdmitted();
      if (admitted == nullptr || admitted->worker == 0 || !wire::is_key(admitted->key) ||
          admitted->job.empty() || admitted->host.empty() || admitted->slot < 0) {
        return end(
            Status(HVD_DRIVER_LOST, fmt::format("the driver at {} broke the protocol: {} as answer to Apply",
                                                request.drivers, wire::body_name(message))));
      }
      {
        std::lock_guard lock(mutex);
        admission = {admitted->job, admitted->host, admitted->key, admitted->worker, admitted->slot};
      }
      end(Status());
    } catch (const Error& error) { end(error.status()); }
  }

  void connected(std::shared_ptr<wire::Channel> made, const Status& why) {
    if (!made) return end(why);
    channel = std::move(made);
    channel->set_handlers({[this](std::span<const uint8_t> frame) { answered(frame); },
                           [this](const Status& closed) {
                             end(Status(HVD_DRIVER_LOST, fmt::format("the driver at {} is lost: {}",
                                                                     request.drivers, closed.message)));
                           }});
    wire::ApplyT apply;
    apply.protocol = wire::kProtocol;
    apply.library = HVD_VERSION_STRING;
    apply.host = request.host;
    apply.slot = request.slot;
    apply.pid = ::getpid();
    wire::EnvelopeT message = wire::envelope(request.job, 0, 0, std::move(apply));
    message.sequence = 1;
    channel->send(wire::encode(message));
  }

  const AdmissionRequest request;
  std::mutex mutex;  // guards what follows up to channel
  std::condition_variable changed;
  std::optional<Status> outcome;
  Admission admission;
  std::shared_ptr<wire::Channel> channel;  // the loop's thread only, and when that has ended
};

}  // namespace

Status apply(const AdmissionRequest& request, const std::function<bool()>& closed, Admission* ret_admission) {
  const Time deadline = now() + request.timeout + kSlack;
  Application application(request);
  Loop loop("hvd-admission");  // its thread has ended before the application goes
  wire::connect_channel(loop, request.drivers, request.secret, wire::kAdmissionIdentity,
                        wire::ChannelLimits{}, request.timeout,
                        [&](std::shared_ptr<wire::Channel> channel, const Status& why) {
                          application.connected(std::move(channel), why);
                        });
  Status status;
  {
    std::unique_lock lock(application.mutex);
    while (!application.outcome && now() < deadline && !closed()) {
      application.changed.wait_until(lock, std::min(deadline, now() + kLook));
    }
    status = application.outcome.value_or(
        now() < deadline ? Status(HVD_CLOSED, "the context was closed")
                         : Status(HVD_TIMEOUT, fmt::format("the driver at {} has not answered within {:g} s",
                                                           request.drivers, to_seconds(request.timeout))));
  }
  loop.post([&] {
    if (application.channel) application.channel->close(Duration(0));
  });
  loop.stop();
  application.channel.reset();
  if (status.ok()) *ret_admission = application.admission;
  return status;
}

}  // namespace hvd::session
