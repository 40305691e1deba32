#include "driver/mpi_server.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "launch/job_directory.h"

namespace hvd::driver {
namespace {

constexpr std::chrono::milliseconds kPatience{2000};  // for helpers of Open MPI to end by themselves
constexpr size_t kMostSaid = 2000;

}  // namespace

std::string find_ompi_server(const std::string& option) {
  try {
    return launch::find_program(option.empty() ? "ompi-server" : option);
  } catch (const Error& error) {
    throw Error(
        HVD_UNAVAILABLE,
        fmt::format("backend mpi needs ompi-server, through which workers of an elastic job find each other: "
                    "{}. It comes with Open MPI 4 (Debian and Ubuntu: package openmpi-bin); option "
                    "ompi_server names its file",
                    error.what()));
  }
}

std::string find_pmix_server(const std::string& option, const std::string& module) {
  const std::string beside = module.substr(0, module.rfind('/') + 1) + "hvd-pmix-server";
  try {
    return launch::find_program(option.empty() ? beside : option);
  } catch (const Error& error) {
    throw Error(HVD_UNAVAILABLE,
                fmt::format("backend mpi needs hvd-pmix-server, through which workers of an elastic job find "
                            "each other: {}. It is built with libhvd_mpi.so where PMIx's headers are found "
                            "(Debian and Ubuntu: package libpmix-dev); option ompi_server names its file",
                            error.what()));
  }
}

MpiServer::MpiServer(Loop& loop, MpiServerConfig config, std::shared_ptr<launch::Guard> guard,
                     LoggerPtr logger, Events events)
    : config_(std::move(config)),
      guard_(std::move(guard)),
      logger_(std::move(logger)),
      events_(std::move(events)),
      loop_(loop),
      deadline_(loop) {
  place_.pmix = config_.pmix;
  place_.loopback = config_.loopback;
  try {
    make_directories();
    if (!config_.program.empty()) start_program();
  } catch (...) {
    launch::remove_job_directories(directories_, std::chrono::milliseconds(0));
    throw;
  }
  if (!config_.program.empty()) return;
  loop_.post([this, alive = std::weak_ptr<int>(alive_)] {
    if (!alive.expired()) tell({});
  });
}

MpiServer::~MpiServer() {
  deadline_.cancel();
  told_ = true;
  if (process_) process_->abandon();
  for (const std::string& directory : launch::remove_job_directories(directories_, kPatience)) {
    logger_->warning("directory {} of this job could not be removed: {}", directory, std::strerror(errno));
  }
}

void MpiServer::make_directories() {
  const char* const temporary = std::getenv("TMPDIR");
  const std::string base = temporary != nullptr && *temporary == '/' ? temporary : "/tmp";
  const auto make = [&](const std::string& where) {
    std::string path = launch::make_job_directory(where);
    if (path.empty()) return path;
    directories_.push_back(path);
    if (guard_) guard_->add_directory(path);
    return path;
  };
  place_.sessions = make(base);
  if (place_.sessions.empty()) {
    throw Error(HVD_UNAVAILABLE, fmt::format("no directory for Open MPI's files can be made in {}: {}", base,
                                             std::strerror(errno)));
  }
  if (!config_.local) return;
  place_.shared = make("/dev/shm");
  if (place_.shared.empty()) place_.shared = place_.sessions;
}

void MpiServer::start_program() {
  launch::SpawnSpec spec;
  spec.path = config_.program;
  // To stderr: what goes to stdout it keeps in a buffer as long as it lives.
  spec.argv = {config_.program, "--no-daemonize", "--report-uri", "+"};
  if (config_.pmix) {
    spec.argv = {config_.program, config_.library, place_.sessions};
    if (!config_.address.empty()) spec.argv.push_back(config_.address);
    if (!config_.address.empty() && !config_.local) spec.argv.push_back("elsewhere");
  }
  spec.environment = ompi_server_environment(place_, launch::merged_environment({}));
  launch::Process::Handlers handlers;
  handlers.output = [this](bool, std::string_view bytes) { take(bytes); };
  handlers.reaping = [this] {
    if (guard_) guard_->remove(process_->pid());
  };
  handlers.exited = [this](int32_t status) { exited(status); };
  handlers.gone = [this] { gone(); };
  process_ = launch::Process::start(loop_, std::move(spec), std::move(handlers));
  if (guard_) guard_->add_helper(process_->pid());
  deadline_.start(config_.timeout, [this] {
    tell(Status(HVD_UNAVAILABLE, fmt::format("{} did not report its address within {:g} s{}", config_.program,
                                             to_seconds(config_.timeout), said_)));
  });
}

void MpiServer::take(std::string_view bytes) {
  lines_.feed(bytes, [this](std::string text) { line(std::move(text)); });
}

void MpiServer::line(std::string text) {
  if (place_.uri.empty()) {
    if (const auto uri = uri_of(text)) {
      place_.uri = *uri;
      logger_->debug("{} (process {}) serves at {}", config_.program, process_->pid(), *uri);
      return tell({});
    }
  }
  if (text.empty()) return;
  if (!told_ && said_.size() < kMostSaid) said_ += (said_.empty() ? "; it says: " : " | ") + text;
  logger_->debug("{}: {}", config_.program, text);
}

void MpiServer::exited(int32_t status) {
  ending_ = fmt::format("{} (process {}) {}", config_.program, process_->pid(), launch::exit_text(status));
  if (!told_) return;  // what it still says belongs to the reason
  if (const auto died = std::exchange(events_.died, nullptr)) died(ending_);
}

void MpiServer::gone() {
  lines_.finish([this](std::string text) { line(std::move(text)); });
  tell(Status(HVD_UNAVAILABLE, fmt::format("{} before it reported its address{}", ending_, said_)));
}

void MpiServer::tell(const Status& status) {
  if (std::exchange(told_, true)) return;
  deadline_.cancel();
  if (!status.ok()) events_.died = nullptr;
  if (events_.started) events_.started(status);
}

}  // namespace hvd::driver
