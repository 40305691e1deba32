// The parts of Server. server_hello.cc lets agents in; server.cc carries their reports and orders.
// programs.cc starts agents. server_takeover.cc has to do with other drivers of the job, server_lives.cc
// with workers' processes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "agent/server.h"
#include "launch/process.h"
#include "launch/worker_output.h"
#include "wire/sequence.h"
#include "wire/tls.h"

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

template <class Body>
void Server::send(wire::Channel& channel, wire::Sequence& sequence, Body body) {
  wire::EnvelopeT message = wire::envelope(config_.job, 0, 0, std::move(body));
  sequence.number(message);
  message.term = term_ ? term_() : 0;
  if (message.body.type == wire::Body::AgentWelcome && message.term > 0)
    message.term_proof = wire::term_proof(config_.secret, config_.job, message.term);
  channel.send(wire::encode(message));
}

}  // namespace hvd::agent
