// The parts of Server: server.cc carries connections and orders, programs.cc starts agents,
// server_takeover.cc has to do with other drivers of the job, server_lives.cc with workers' processes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "agent/server.h"
#include "launch/process.h"
#include "launch/worker_output.h"
#include "wire/sequence.h"

namespace hvd::agent {

constexpr size_t kLongestLine = 500;  // that others say, in the log

struct Server::Connection {
  std::shared_ptr<wire::Channel> channel;
  std::string host;
  uint64_t instance = 0;
  wire::Sequence sequence;
  uint64_t acknowledged = 0;
  Time heard{};
  bool over = false;
};

struct Server::Program {
  std::shared_ptr<launch::Process> process;
  std::string command;
  launch::LineSplitter lines[2];
  std::deque<std::string> said;
  int32_t status = -1;
  bool unwanted = false;
};

struct Server::Worker {
  std::string host;
  std::unique_ptr<launch::WorkerOutput> output;
  launch::Life life = launch::Life::kUnknown;
  Time seen{};
};

}  // namespace hvd::agent
