// Sends one command to a driver and prints its answer.
#include "cli/ctl.h"

#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "hvd/driver.h"

namespace hvd::cli {
namespace {

constexpr int kUsage = 2;

struct Free {
  void operator()(hvd_options* options) const { hvd_options_destroy(options); }
  void operator()(char* text) const { hvd_free(text); }
};

struct Question {
  std::string address, secret_file, timeout = "10";
  std::string verb, argument;
  bool json = false, watch = false;
};

bool is_file(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 && !S_ISDIR(found.st_mode);
}

void check(hvd_status status, const hvd_error& error) {
  if (status != HVD_OK) throw CLI::ValidationError(error.message);
}

std::unique_ptr<hvd_options, Free> options_of(const Question& question) {
  hvd_options* made = nullptr;
  hvd_error error = HVD_ERROR_INIT;
  check(hvd_options_create(&made, &error), error);
  std::unique_ptr<hvd_options, Free> options(made);
  const auto set = [&](const char* key, const std::string& text) {
    check(hvd_options_set(made, key, text.c_str(), &error), error);
  };
  if (!question.address.empty()) {
    // A path is one that has a slash, or is there: host:port has neither.
    const bool file = question.address.find('/') != std::string::npos || is_file(question.address);
    set("address_file", file ? question.address : "");
    if (!file) set("driver", question.address);
  }
  if (!question.secret_file.empty()) {
    set("secret", "");  // the environment's may be another job's
    set("secret_file", question.secret_file);
  }
  return options;
}

int64_t nanoseconds_of(const std::string& seconds) {
  size_t end = 0;
  double number = 0;
  try {
    number = std::stod(seconds, &end);
  } catch (const std::exception&) { end = 0; }
  if (end == 0 || end != seconds.size() || !(number >= 0.001 && number <= 86400))
    throw CLI::ValidationError("--timeout", "'" + seconds + "': expected 0.001 to 86400 seconds");
  return static_cast<int64_t>(number * 1e9);
}

int ask(const hvd_options* options, const Question& question, std::string* ret_text) {
  hvd_error error = HVD_ERROR_INIT;
  char* text = nullptr;
  const hvd_status status = hvd_driver_command(options, question.verb.c_str(), question.argument.c_str(),
                                               nanoseconds_of(question.timeout), &text, &error);
  const std::unique_ptr<char, Free> owned(text);
  if (status == HVD_OK) {
    *ret_text = text;
    return 0;
  }
  std::fprintf(stderr, "hvdrun ctl: %s\n", error.message);
  return status == HVD_INVALID ? kUsage : 1;
}

}  // namespace

int ctl(int argc, char** argv) {
  CLI::App app("Asks and steers a job that runs: hvdrun ctl --address FILE status", "hvdrun ctl");
  Question question;
  std::vector<std::string> words;
  app.add_option(
      "--address", question.address,
      "the file that hvdrun --address-file wrote, or host:port of the driver; default: HVD_ADDRESS_FILE, "
      "HVD_DRIVER");
  app.add_option(
      "--secret-file", question.secret_file,
      "file of mode 600 with the job's secret in its first line, where the address is host:port; -: standard "
      "input; default: HVD_SECRET or HVD_SECRET_FILE");
  app.add_option("--timeout", question.timeout, "seconds to wait for the answer; default: 10");
  app.add_flag("--json", question.json, "status as JSON");
  app.add_flag("--watch", question.watch,
               "status every second, until the driver is gone or this is interrupted");
  app.add_option("verb", words,
                 "what to ask, with its argument: status, or help, which lists the driver's verbs")
      ->required();
  app.footer(
      "Exit status: 0, 1 if the driver can't be reached or refuses, 2 for what it does not understand.");
  try {
    app.parse(argc, argv);
    question.verb = words.front();
    for (size_t i = 1; i < words.size(); ++i) question.argument += (i > 1 ? " " : "") + words[i];
    if (question.json) {
      if (question.verb != "status" || !question.argument.empty())
        throw CLI::ValidationError("--json", "goes with status alone");
      question.argument = "json";
    }
    if (question.watch && question.verb != "status")
      throw CLI::ValidationError("--watch", "goes with status alone");
    const auto options = options_of(question);
    const bool screen = question.watch && !question.json && ::isatty(STDOUT_FILENO) == 1;
    do {
      std::string text;
      if (const int status = ask(options.get(), question, &text); status != 0) return status;
      if (!text.empty() && text.back() != '\n') text += '\n';
      if (screen) text = "\x1b[H\x1b[2J" + text;
      if (question.watch && !screen && !question.json) text += '\n';
      std::fwrite(text.data(), 1, text.size(), stdout);
      if (std::fflush(stdout) != 0) return 1;
      if (question.watch) std::this_thread::sleep_for(std::chrono::seconds(1));
    } while (question.watch);
    return 0;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    std::fprintf(stderr, "hvdrun ctl: %s\nhvdrun ctl: hvdrun ctl --help lists the options\n", error.what());
    return kUsage;
  }
}

}  // namespace hvd::cli
