// The other end of a driver's commands: whoever asks and steers a job that runs.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "base/loop.h"
#include "base/options.h"

namespace hvd::driver {

/// Where a driver is, and what it takes to operate its job: what option address_file holds.
struct DriverAddress {
  std::string endpoint;  // host:port
  std::string job;       // "": any
  std::string key;       // of the operator, or the job's secret
};

/// Writes it where nobody but this user may read it, in one step: a reader sees all of it or what was there
/// before. Throws Error(HVD_UNAVAILABLE).
void write_address_file(const std::string& path, const DriverAddress& address);

/// Throws Error: HVD_UNAVAILABLE if it can't be read, HVD_INVALID if it is none.
DriverAddress read_address_file(const std::string& path);

/// From options driver, secret and job, or else from the file of option address_file. Throws Error.
DriverAddress address_of(const Options& options);

/// Keeps its connection from one question to the next one. One thread at a time.
class Operator {
 public:
  explicit Operator(const DriverAddress& address);
  ~Operator();
  Operator(const Operator&) = delete;
  Operator& operator=(const Operator&) = delete;
  /// Asks the driver and waits for its answer; connects first if there is no connection. Throws Error:
  /// HVD_DRIVER_LOST, HVD_REFUSED, HVD_TIMEOUT, or what the driver says.
  std::string ask(const std::string& verb, const std::string& argument, Duration timeout);

 private:
  class Line;
  void hang_up();
  const std::unique_ptr<Loop> loop_;
  const std::shared_ptr<Line> line_;
};

/// One question over a connection of its own.
std::string command(const DriverAddress& address, const std::string& verb, const std::string& argument,
                    Duration timeout);

}  // namespace hvd::driver
