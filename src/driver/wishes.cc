// What an operator, or who knows that a machine is about to go, wants of the job.
#include <fmt/format.h>

#include <charconv>

#include "base/options.h"
#include "driver/supervisor_impl.h"

namespace hvd::driver {

template <class Event>
membership::Answer Supervisor::wish(Event event) {
  if (closed_ || finish_ || !membership_) {
    return {false, finish_ ? "the job has ended: " + finish_->sentence : "the driver is starting"};
  }
  membership::Answer answer;
  std::vector<membership::Action> actions = event(&answer);
  if (answer.accepted) note(HVD_LOG_INFO, answer.text);
  apply(std::move(actions));
  return answer;
}

membership::Answer Supervisor::drain(const std::string& host, Duration timeout, const std::string& why) {
  return wish([&](membership::Answer* answer) {
    return membership_->drain(host, timeout, why, clock_.now(), answer);
  });
}

membership::Answer Supervisor::undrain(const std::string& host) {
  return wish([&](membership::Answer* answer) { return membership_->undrain(host, clock_.now(), answer); });
}

membership::Answer Supervisor::scale(int32_t size) {
  return wish([&](membership::Answer* answer) { return membership_->scale(size, clock_.now(), answer); });
}

void Supervisor::answer_to(const membership::Answer& answer, const CommandReply& reply) {
  if (answer.accepted) return reply(Status(), answer.text);
  reply(Status(HVD_INVALID, answer.text), "");
}

void Supervisor::command_drain(const std::string& argument, const CommandReply& reply) {
  const size_t space = argument.find(' ');
  const std::string host = argument.substr(0, space);
  Duration timeout = config_.settings.leave_timeout;
  if (host.empty()) return reply(Status(HVD_INVALID, "drain: expected HOST [SECONDS]"), "");
  if (space != std::string::npos) {
    try {
      Options reader;  // a duration as options have it
      reader.set("leave_timeout", argument.substr(space + 1));
      timeout = reader.duration("leave_timeout");
    } catch (const Error& error) {
      return reply(Status(HVD_INVALID, fmt::format("drain {}: {}", host, error.status().message)), "");
    }
  }
  answer_to(drain(host, timeout, fmt::format("host {} is drained by an operator", host)), reply);
}

void Supervisor::command_undrain(const std::string& argument, const CommandReply& reply) {
  if (argument.empty()) return reply(Status(HVD_INVALID, "undrain: expected HOST"), "");
  answer_to(undrain(argument), reply);
}

void Supervisor::command_scale(const std::string& argument, const CommandReply& reply) {
  int32_t size = 0;
  const char* end = argument.data() + argument.size();
  const auto [stop, error] = std::from_chars(argument.data(), end, size);
  if (error != std::errc() || stop != end || size < 1) {
    return reply(
        Status(HVD_INVALID, fmt::format("scale '{}': expected a number of workers, 1 or more", argument)),
        "");
  }
  answer_to(scale(size), reply);
}

void Supervisor::command_stop(const std::string& argument, const CommandReply& reply) {
  reply(Status(), finish_ ? "the job has ended already" : "the job is stopped");
  stop(argument.empty() ? "stopped by an operator" : "stopped by an operator: " + argument);
}

}  // namespace hvd::driver
