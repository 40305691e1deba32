// Fuzzes what members read of each other's addresses: what ranks of a host share, where links listen.
#include "fuzz.h"
#include "hvd/backend.hpp"
#include "local/address.h"
#include "modules/kit/net.h"

namespace hvd::fuzz {
namespace {

Bytes tagged(uint8_t kind, std::span<const uint8_t> blob) {
  Bytes input = {kind};
  input.insert(input.end(), blob.begin(), blob.end());
  return input;
}

void place(std::span<const uint8_t> blob) {
  local::Address address, again;
  const Status status = local::decode(blob, &address);
  if (!status.ok()) {
    HVD_PROMISE(status.code == HVD_INVALID && !status.message.empty());
    return;
  }
  HVD_PROMISE(local::decode(local::encode(address), &again).ok());
  HVD_PROMISE(again.payload == address.payload && again.place.has_value() == address.place.has_value());
}

void link(std::span<const uint8_t> blob) {
  try {
    const hvdkit::Blob where = hvdkit::Blob::decode(blob.data(), blob.size());
    socklen_t length = 0;
    where.sockaddr_of(&length);
    const auto again = where.encode();
    hvdkit::Blob::decode(again.data(), again.size());
  } catch (const hvdkit::Failure& failure) { HVD_PROMISE(failure.status == HVD_INVALID); }
}

}  // namespace

void one_input(std::span<const uint8_t> data) {
  Decisions decisions(data);
  return decisions.byte() % 2 == 0 ? place(decisions.all()) : link(decisions.all());
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> result;
  local::Address address;
  result.push_back(tagged(0, local::encode(address)));
  address.place = local::Place{};
  address.place->process = 4711;
  result.push_back(tagged(0, local::encode(address)));
  hvdkit::Blob where;
  where.port = 4711;
  result.push_back(tagged(1, where.encode()));
  where.v6 = true;
  result.push_back(tagged(1, where.encode()));
  return result;
}

}  // namespace hvd::fuzz
