// The parts of RendezvousServer: rendezvous_server.cc keeps connections and tells workers,
// rendezvous_messages.cc reads what they say, rendezvous_heartbeats.cc hears that they live,
// rendezvous_lives.cc that they have died.
#pragma once

#include <list>
#include <memory>
#include <string>
#include <utility>

#include "base/text.h"
#include "driver/rendezvous_server.h"
#include "wire/sequence.h"

namespace hvd::driver {

struct RendezvousServer::Connection {
  explicit Connection(Loop& loop) : deadline(loop) {}
  // First what each heartbeat asks for: few lines of the processor's memory.
  uint64_t worker = 0;  // 0 until its hello was accepted
  bool over = false;
  bool slow = false;  // silent for longer than heartbeat_timeout, though its process runs
  Time heard{};       // listen() sets it, which keeps by_silence_ in order
  std::list<Connection*>::iterator silence;  // its place there, after its hello
  wire::Sequence sequence;
  int64_t unanswered = 0;  // heartbeats since the last one that was answered
  uint64_t told_term = 0;  // which term it can prove
  std::shared_ptr<wire::Channel> channel;
  uint64_t revision = 0;  // as it told last

  Loop::Timer deadline;  // for hello, and for an operator's next command
  uint64_t claimed = 0;  // whom it says to be
  std::string host;
  std::string backends;   // as it told last
  uint64_t assigned = 0;  // the last generation that it was given a place in
  uint64_t roster = 0;    // the generation whose members it knows
  bool takes_rosters = false;
  uint64_t generation = 0;          // what it is a member of: 0 before, after an abort and while it waits
  uint64_t recovered = 0;           // the generation that it has told its recovery into
  launch::ProcessClaim process;     // as it says
  RateLimit notes{10, seconds(1)};  // log lines that its messages cause
  int32_t refused = 0;              // of its messages
  bool takes_waiting = false;       // it understands Waiting and Probe
  bool operates = false;            // an operator's, after its hello
  int32_t asked = 0;                // commands under way
  bool resumes = false;             // it is to say where it stands
  int32_t slot = 0;                 // as it says
};

template <class Body>
void RendezvousServer::send(Connection& connection, uint64_t generation, Body body) {
  wire::EnvelopeT message = wire::envelope(config_.job, connection.claimed, generation, std::move(body));
  connection.sequence.number(message);
  message.term = term_;
  if (std::exchange(connection.told_term, term_) != term_) message.term_proof = term_proof_;
  connection.channel->send(wire::encode(message));
}

}  // namespace hvd::driver
