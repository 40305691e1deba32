// What an operator may ask of the driver. Each verb is a row of the table below.
#include <fmt/format.h>

#include <algorithm>

#include "driver/supervisor_impl.h"

namespace hvd::driver {

struct Supervisor::Verb {
  const char* name;
  const char* argument;  // what it takes, for people; "" if nothing
  const char* meaning;
  void (Supervisor::*run)(const std::string& argument, const CommandReply& reply);
};

std::span<const Supervisor::Verb> Supervisor::verbs() {
  static constexpr Verb kVerbs[] = {
      {"help", "", "lists what can be asked", &Supervisor::command_help},
      {"status", "[text|json|openmetrics|line]", "tells how the job is doing", &Supervisor::command_status},
      {"drain", "HOST [SECONDS]", "its workers leave at the next commit, and it gets no others",
       &Supervisor::command_drain},
      {"undrain", "HOST", "it may be used again", &Supervisor::command_undrain},
      {"scale", "N", "the most workers from now on", &Supervisor::command_scale},
      {"journal", "TERM FILE OFFSET", "for a driver that stands by: what it lacks of the journal",
       &Supervisor::command_journal},
      {"yield", "TERM", "for a driver that has taken over: this one ends if its term is lower, and tells it",
       &Supervisor::command_yield},
      {"stop", "[REASON]", "ends the job, which has failed then", &Supervisor::command_stop},
  };
  return kVerbs;
}

void Supervisor::command(const std::string& name, const std::string& argument, const CommandReply& reply) {
  const std::span<const Verb> all = verbs();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Verb& verb) { return name == verb.name; });
  if (found == all.end()) {
    std::string known;
    for (const Verb& verb : all) known += fmt::format("{}{}", known.empty() ? "" : ", ", verb.name);
    return reply(Status(HVD_INVALID, fmt::format("no verb '{}': expected one of {}", name, known)), "");
  }
  if (*found->argument == '\0' && !argument.empty()) {
    return reply(
        Status(HVD_INVALID, fmt::format("verb {} with argument '{}': expected none", name, argument)), "");
  }
  (this->*found->run)(argument, reply);
}

void Supervisor::command_help(const std::string&, const CommandReply& reply) {
  std::string text;
  for (const Verb& verb : verbs()) {
    const std::string call =
        fmt::format("{}{}{}", verb.name, *verb.argument != '\0' ? " " : "", verb.argument);
    text += fmt::format("{:<32}  {}\n", call, verb.meaning);
  }
  reply(Status(), text);
}

void Supervisor::command_status(const std::string& argument, const CommandReply& reply) {
  const std::optional<status::Format> format = status::format_named(argument.empty() ? "text" : argument);
  if (!format) {
    return reply(
        Status(HVD_INVALID,
               fmt::format("status in format '{}': expected text, json, openmetrics or line", argument)),
        "");
  }
  reply(Status(), status::describe(snapshot(), *format));
}

}  // namespace hvd::driver
