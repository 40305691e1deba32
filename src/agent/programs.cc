// The programs that start agents on other hosts: ssh, srun, or what option agent says.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "agent/command.h"
#include "agent/server_impl.h"
#include "base/descriptor.h"
#include "base/text.h"
#include "wire/tls.h"

namespace hvd::agent {
namespace {

constexpr size_t kLastLines = 5;  // of a program that could not start an agent

}  // namespace

std::string Server::last_lines(const Program& program) {
  std::string said;
  for (const std::string& line : program.said) said += (said.empty() ? "; its last lines: " : " | ") + line;
  return said;
}

void Server::perform(StartAgent& action) {
  const std::string& host = action.host;
  std::string addresses;
  for (const std::string& endpoint : endpoints_) addresses += (addresses.empty() ? "" : ",") + endpoint;
  const std::vector<std::string> argv = agent_command(
      config_.words, host, {config_.program, "--join", addresses, "--host", host, "--secret-file", "-"});
  const std::string command = shown(argv);
  const auto failed = [&](const std::string& why) {
    later([this, host,
           text = fmt::format("the agent of host {} can't be started: {}: {}", host, command, why)] {
      logger_->warning("{}", text);
      apply(fleet_.agent_failed(host, text, now()));
    });
  };
  auto program = std::make_shared<Program>();
  program->command = command;
  try {
    launch::SpawnSpec spec;
    spec.path = launch::find_program(argv.front());
    spec.argv = argv;
    spec.environment = config_.own_environment;
    spec.own_session = true;  // no terminal to ask for passwords at
    int fds[2];
    if (::pipe2(fds, O_CLOEXEC) != 0) throw Error(HVD_UNAVAILABLE, std::strerror(errno));
    Descriptor read = above_standard(Descriptor(fds[0]), "a pipe");
    Descriptor write = above_standard(Descriptor(fds[1]), "a pipe");
    spec.in = read.get();
    // Through stdin alone: arguments and variables are seen by others. It fits into the pipe.
    const std::string key = wire::key_text(config_.secret, wire::agent_identity(host)) + "\n";
    if (::write(write.get(), key.data(), key.size()) != static_cast<ssize_t>(key.size()))
      throw Error(HVD_UNAVAILABLE, std::strerror(errno));
    program->process =
        launch::Process::start(loop_, std::move(spec), handlers_of(host, program), options_of(host));
  } catch (const Error& error) { return failed(error.what()); }
  logger_->info("starting the agent of host {}: {}", host, command);
  programs_[host] = std::move(program);
}

launch::Process::Handlers Server::handlers_of(const std::string& host,
                                              const std::shared_ptr<Program>& program) {
  launch::Process::Handlers handlers;
  const std::weak_ptr<Program> weak = program;
  handlers.output = [this, weak, host](bool is_stderr, std::string_view bytes) {
    const auto p = weak.lock();
    if (!p) return;
    p->lines[is_stderr ? 1 : 0].feed(bytes, [&](const std::string& line) {
      const std::string text = printable(line, kLongestLine);
      if (text.empty()) return;
      p->said.push_back(text);
      if (p->said.size() > kLastLines) p->said.pop_front();
      if (notes_.pass(now())) logger_->info("agent of host {}: {}", host, text);
    });
  };
  handlers.exited = [weak](int32_t status) {
    if (const auto p = weak.lock()) p->status = status;
  };
  handlers.gone = [this, weak, host] {
    const auto p = weak.lock();
    if (!p || p->unwanted) return;
    for (launch::LineSplitter& lines : p->lines) {
      lines.finish([&](const std::string& line) { p->said.push_back(printable(line, kLongestLine)); });
    }
    program_gone(host, p->command, p->status);
  };
  handlers.failed = [this, host](const std::string& why) {
    programs_.erase(host);
    apply(fleet_.agent_failed(host, why, now()));
  };
  return handlers;
}

launch::Process::Options Server::options_of(const std::string& host) {
  launch::Process::Options options{false, guard_(), false};
  if (config_.keeper) {
    options.keeper = config_.keeper;
    options.kept_as = launch::Keeper::name_of_agent(host);
    options.kept_text = "0 " + host;
  }
  return options;
}

void Server::program_gone(const std::string& host, const std::string& command, int32_t status) {
  const auto found = programs_.find(host);
  if (found == programs_.end()) return;
  const std::string said = last_lines(*found->second);
  const std::shared_ptr<Program> kept = found->second;  // called from within it
  programs_.erase(found);
  if (retired_) {
    let_go_of(host);
    if (hosts_changed_) later(hosts_changed_);
    return;
  }
  const std::string text = fmt::format("the agent of host {} can't be started: {} {}{}", host, command,
                                       launch::exit_text(status), said);
  if (!connections_.contains(host) && !ending_) logger_->warning("{}", text);
  apply(fleet_.agent_ended(host, text, now()));
}

void Server::perform(StopAgent& action) {
  const auto found = programs_.find(action.host);
  if (found == programs_.end()) return;
  const std::shared_ptr<Program> program = found->second;
  program->unwanted = true;
  programs_.erase(found);
  if (!ending_) logger_->warning("ended: {}{}", program->command, last_lines(*program));
  program->process->signal_group(SIGTERM);
  // Not from within one of its handlers.
  later([program] { program->process->abandon(); });
  apply(fleet_.agent_ended(action.host, "it was stopped", now()));
}

}  // namespace hvd::agent
