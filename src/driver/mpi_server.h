// The server through which the workers' MPI processes find each other (Open MPI's ompi-server, or hvd-pmix-server where Open
// MPI has none), and the private directories of the job in which they leave their files. What is set for whom is decided in mpi_rules.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/status.h"
#include "driver/mpi_rules.h"
#include "launch/guard.h"
#include "launch/output.h"
#include "launch/process.h"

namespace hvd::driver {

struct MpiServerConfig {
  bool pmix = false;     // hvd-pmix-server
  std::string program;   // the server's file; empty: none is run, somebody else's is used
  std::string library;   // the module mpi, for hvd-pmix-server
  std::string address;   // where that listens; empty: on the loopback
  bool local = true;     // workers are processes of this machine
  bool loopback = true;  // and talk through its loopback
  Duration timeout = seconds(20);
};

/// Looks ompi-server up: option `ompi_server`, else PATH. Throws Error(HVD_UNAVAILABLE) that says where to get it.
std::string find_ompi_server(const std::string& option);

/// Looks hvd-pmix-server up: option `ompi_server`, else beside the module. Throws Error(HVD_UNAVAILABLE).
std::string find_pmix_server(const std::string& option, const std::string& module);

/// Everything on the loop's thread.
class MpiServer {
 public:
  struct Events {
    std::function<void(const Status& status)> started;  // once, from a later turn of the loop on
    std::function<void(const std::string& why)> died;   // once, if it ends though nobody asked it to
  };

  /// Makes the directories and starts the program. Throws Error(HVD_UNAVAILABLE). `guard` may be null: then
  /// nothing ends the server of a driver that is killed.
  MpiServer(Loop& loop, MpiServerConfig config, std::shared_ptr<launch::Guard> guard, LoggerPtr logger,
            Events events);
  ~MpiServer();  // ends it and removes the directories; the workers are gone by then
  MpiServer(const MpiServer&) = delete;
  MpiServer& operator=(const MpiServer&) = delete;

  /// Complete when `started` has been called.
  const MpiPlace& place() const { return place_; }

 private:
  void make_directories();
  void start_program();
  void take(std::string_view bytes);
  void line(std::string text);
  void exited(int32_t status);
  void gone();
  void tell(const Status& status);

  const MpiServerConfig config_;
  const std::shared_ptr<launch::Guard> guard_;
  const LoggerPtr logger_;
  Events events_;
  Loop& loop_;
  MpiPlace place_;
  std::vector<std::string> directories_;
  std::shared_ptr<launch::Process> process_;
  Loop::Timer deadline_;
  launch::LineSplitter lines_;
  std::string said_;    // what it printed before its address
  std::string ending_;  // how it ended
  bool told_ = false;
  const std::shared_ptr<int> alive_ = std::make_shared<int>(0);
};

}  // namespace hvd::driver
