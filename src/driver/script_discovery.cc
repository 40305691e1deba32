// Discovery by a script: one run at a time, killed with its group when late.
#include <fmt/format.h>

#include <csignal>
#include <utility>

#include "base/text.h"
#include "driver/discovery.h"
#include "launch/output.h"
#include "launch/process.h"

namespace hvd::driver {
namespace {

constexpr size_t kMaxOutput = size_t{1} << 20;
constexpr size_t kMaxLoggedLine = 512;
constexpr int kMaxLoggedLines = 100;  // of one run

class ScriptDiscovery final : public HostDiscovery {
 public:
  ScriptDiscovery(Loop& loop, std::string program, int32_t slots_per_host, Duration timeout, LoggerPtr logger)
      : loop_(loop),
        program_(std::move(program)),
        slots_per_host_(slots_per_host),
        timeout_(timeout),
        logger_(std::move(logger)),
        timer_(loop) {}

  ~ScriptDiscovery() override { close(Duration(0)); }

  void discover(Done done) override {
    done_ = std::move(done);
    output_.clear();
    logged_ = 0;
    errors_ = launch::LineSplitter(kMaxLoggedLine);
    exit_status_ = 0;
    try {
      launch::SpawnSpec spec;
      spec.path = launch::find_program(program_);
      spec.argv = {program_};
      spec.environment = launch::merged_environment({});
      launch::Process::Handlers handlers;
      handlers.output = [this](bool is_stderr, std::string_view bytes) { take(is_stderr, bytes); };
      handlers.exited = [this](int32_t status) { exit_status_ = status; };
      handlers.gone = [this] { ended(); };
      process_ = launch::Process::start(loop_, std::move(spec), std::move(handlers));
    } catch (const Error& error) {
      fail(error.what());
      return;
    }
    timer_.start(timeout_, [this] {
      abandon();
      fail(fmt::format("did not end within {:g} s and was killed", to_seconds(timeout_)));
    });
  }

  void close(Duration) override {
    timer_.cancel();
    done_ = nullptr;
    abandon();
  }

 private:
  void log_line(const std::string& line) {
    if (++logged_ < kMaxLoggedLines) logger_->warning("discovery script {}: {}", program_, printable(line));
    if (logged_ == kMaxLoggedLines)
      logger_->warning("discovery script {}: more lines follow and are left out", program_);
  }

  void take(bool is_stderr, std::string_view bytes) {
    if (is_stderr) {
      errors_.feed(bytes, [this](const std::string& line) { log_line(line); });
      return;
    }
    output_.append(bytes);
    if (output_.size() > kMaxOutput) {
      // Not from within the process's own handler.
      timer_.start(Duration(0), [this] {
        abandon();
        fail(fmt::format("printed more than {} bytes and was killed", kMaxOutput));
      });
    }
  }

  void abandon() {
    if (process_) std::exchange(process_, nullptr)->abandon();
  }

  void ended() {
    errors_.finish([this](const std::string& line) { log_line(line); });
    process_ = nullptr;
    timer_.cancel();
    if (output_.size() > kMaxOutput) return fail(fmt::format("printed more than {} bytes", kMaxOutput));
    if (exit_status_ != 0) return fail(launch::exit_text(exit_status_));
    std::vector<membership::HostSlots> hosts;
    try {
      hosts = parse_discovery_output(output_, slots_per_host_);
    } catch (const Error& error) { return fail(error.what()); }
    if (done_) std::exchange(done_, nullptr)(Status(), std::move(hosts));
  }

  void fail(const std::string& why) {
    timer_.cancel();
    if (!done_) return;
    std::exchange(done_, nullptr)(
        Status(HVD_UNAVAILABLE, fmt::format("discovery script {}: {}", program_, why)), {});
  }

  Loop& loop_;
  const std::string program_;
  const int32_t slots_per_host_;
  const Duration timeout_;
  const LoggerPtr logger_;
  Loop::Timer timer_;
  std::shared_ptr<launch::Process> process_;
  std::string output_;
  int logged_ = 0;
  launch::LineSplitter errors_{kMaxLoggedLine};
  int32_t exit_status_ = 0;
  Done done_;
};

}  // namespace

std::unique_ptr<HostDiscovery> make_script_discovery(Loop& loop, std::string program, int32_t slots_per_host,
                                                     Duration timeout, LoggerPtr logger) {
  return std::make_unique<ScriptDiscovery>(loop, std::move(program), slots_per_host, timeout,
                                           std::move(logger));
}

}  // namespace hvd::driver
