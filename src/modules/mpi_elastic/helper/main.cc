// hvd-mpi-helper: what the driver runs beside an elastic job on Open MPI (the manifest of mpi_elastic names
// it). It runs the server through which the workers' MPI processes find each other: Open MPI's ompi-server,
// or hvd-pmix-server, which lies beside this program, where Open MPI (5 and later) has none. HVD_OMPI_SERVER
// names another file; with "off", or where the environment names a server already, none is run.
//
// Arguments KEY=VALUE: directory and memory, private directories of the job; listen, where the driver
// listens; interface; local, 1 if the workers are processes of this machine. Its environment is what the
// workers' would be. It says on stdout what they need, then "ready"; it ends, with the reason on stderr, when
// the server does. SIGTERM ends it, the server, and the daemons of workers that are gone.
#include <mpi.h>  // for its version alone
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "modules/mpi_elastic/helper/program.h"
#include "modules/mpi_elastic/helper/rules.h"
#include "modules/mpi_elastic/helper/sessions.h"

extern char** environ;

namespace hvdmpi::helper {
namespace {

constexpr bool kPmix = OMPI_MAJOR_VERSION >= 5;
constexpr std::chrono::milliseconds kPatience{2000};  // for daemons to end by themselves

void say(const std::string& text) { std::fprintf(stderr, "%s\n", text.c_str()); }

void tell(const Strings& lines) {
  for (const std::string& line : lines) std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string folder_of_this_program() {
  std::string path(4096, 0);
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  path.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return path.substr(0, path.rfind('/') + 1);
}

// The server's command, or nothing if it can't be found, which is said.
Strings command_of_server(const std::string& option, const Place& place, const std::string& listen,
                          bool local) {
  const std::string folder = folder_of_this_program();
  const std::string wanted = !option.empty() ? option : kPmix ? folder + "hvd-pmix-server" : "ompi-server";
  const std::string program = find_program(wanted);
  if (program.empty()) {
    say("backend mpi needs " + std::string(kPmix ? "hvd-pmix-server" : "ompi-server") +
        ", through which workers of an elastic job find each other, and there is no program '" + wanted +
        "'. It " +
        (kPmix
             ? "is built with libhvd_mpi_elastic.so where PMIx's headers are found (Debian and Ubuntu: package libpmix-dev)"
             : "comes with Open MPI 4 (Debian and Ubuntu: package openmpi-bin)") +
        "; HVD_OMPI_SERVER names its file");
    return {};
  }
  // To stderr: what goes to stdout it keeps in a buffer as long as it lives.
  if (!kPmix) return {program, "--no-daemonize", "--report-uri", "+"};
  Strings command = {program, folder + "libhvd_mpi_elastic.so", place.sessions};
  if (const std::string address = pmix_address(listen); !address.empty()) {
    command.push_back(address);
    if (!local) command.push_back("elsewhere");
  }
  return command;
}

int run(std::map<std::string, std::string> arguments, int signals) {
  Strings environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    environment.emplace_back(*entry);
  const Strings given = without_launcher(environment);
  const bool local = arguments["local"] == "1";
  Place place;
  place.pmix = kPmix;
  place.sessions = arguments["directory"];
  place.shared = local ? arguments["memory"] : "";
  place.loopback = on_loopback(arguments["listen"]) && arguments["interface"].empty();

  const char* const variable = ::secure_getenv("HVD_OMPI_SERVER");
  const std::string option = variable != nullptr ? variable : "";
  Program server;
  std::string name;
  if (option != "off" && !(option.empty() && names_server(given, kPmix))) {
    const Strings command = command_of_server(option, place, arguments["listen"], local);
    if (command.empty()) return 1;
    name = command[0];
    if (!server.start(command, server_environment(place, environment))) {
      say(name + ": " + std::strerror(errno));
      return 1;
    }
  }
  bool ready = false;
  const auto get_ready = [&] {
    ready = true;
    Strings lines;
    for (const std::string& left : left_by_launcher(environment)) lines.push_back("unset " + left);
    const Strings more = worker_variables(place, given);
    lines.insert(lines.end(), more.begin(), more.end());
    lines.emplace_back("ready");
    tell(lines);
  };
  if (name.empty()) get_ready();
  const std::string who = name.empty() ? name : name + " (process " + std::to_string(server.pid()) + ") ";
  for (;;) {
    pollfd watched[] = {{signals, POLLIN, 0}, {server.output(), POLLIN, 0}};
    if (poll(watched, 2, -1) < 0 && errno != EINTR) return 1;
    server.read([&](const std::string& line) {
      const auto uri = ready ? std::nullopt : uri_of(line);
      if (!uri) return say(line);
      place.uri = *uri;
      get_ready();
    });
    signalfd_siginfo signal{};
    if (read(signals, &signal, sizeof signal) == sizeof signal && signal.ssi_signo != SIGCHLD) break;
    if (const auto how = server.ended()) {
      server.read(say);
      say(who + *how);
      return 1;
    }
  }
  server.end();
  end_daemons(place.sessions, kPatience);
  return 0;
}

}  // namespace
}  // namespace hvdmpi::helper

int main(int argc, char** argv) {
  using namespace hvdmpi::helper;
  std::map<std::string, std::string> arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      say("usage: hvd-mpi-helper directory=... memory=... listen=... interface=... local=0|1: the driver runs it");
      return 2;
    }
    arguments[word.substr(0, equals)] = word.substr(equals + 1);
  }
  sigset_t set;
  sigemptyset(&set);
  for (const int one : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) sigaddset(&set, one);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  signal(SIGPIPE, SIG_IGN);  // of a driver that is gone
  const int signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (signals < 0) {
    say(std::strerror(errno));
    return 1;
  }
  return run(arguments, signals);
}
