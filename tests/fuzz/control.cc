// Fuzzes what is read of the control channel's frames: what passes can be written, and reads the same again.
#include "base/status.h"
#include "fuzz.h"
#include "wire/messages.h"

namespace hvd::fuzz {
namespace {

template <class Table>
Bytes message(Table body) {
  wire::EnvelopeT envelope = wire::envelope("job", 5, 7, std::move(body));
  envelope.sequence = 3;
  return wire::encode(envelope);
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  wire::EnvelopeT first;
  try {
    first = wire::decode(data);
  } catch (const Error& error) {
    HVD_PROMISE(error.status().code == HVD_INVALID);
    HVD_PROMISE(std::strlen(error.what()) > 0);
    return;
  }
  HVD_PROMISE(first.body.type != wire::Body::NONE);
  HVD_PROMISE(std::strlen(wire::body_name(first)) > 0);
  const Bytes again = wire::encode(first);
  HVD_PROMISE(wire::encode(wire::decode(again)) == again);
}

std::vector<Bytes> seeds() {
  wire::HelloT hello;
  hello.protocol = wire::kProtocol;
  hello.host = "a";
  wire::ReadyT ready;
  ready.addresses.push_back(std::make_unique<wire::AddressT>());
  ready.addresses.back()->backend = "gloo";
  ready.addresses.back()->blob = {1, 2, 3};
  ready.digest = std::make_unique<wire::Digest>(1, 2);
  wire::AssignmentT assignment;
  for (uint64_t worker : {3, 5}) {
    assignment.members.push_back(std::make_unique<wire::MemberT>());
    assignment.members.back()->worker = worker;
    assignment.members.back()->host = "h";
  }
  wire::KvSetT set;
  set.key = "k";
  set.value = {1};
  wire::KvValueT value;
  value.key = "k";
  wire::StallT stall;
  stall.missing = {1, 2};
  wire::HostsUpdatedT hosts;
  hosts.added = {"b"};
  return {message(hello),
          message(ready),
          message(assignment),
          message(set),
          message(value),
          message(stall),
          message(hosts),
          message(wire::AbortT{}),
          message(wire::FailureT{}),
          message(wire::JobEndedT{})};
}

}  // namespace hvd::fuzz
