// Fuzzes what members read of each other's addresses: the list of offers, what ranks of a host share, where
// links listen.
#include "fuzz.h"
#include "hvd/backend.hpp"
#include "local/address.h"
#include "modules/kit/net.h"
#include "selection/frame.h"

namespace hvd::fuzz {
namespace {

Bytes tagged(uint8_t kind, std::span<const uint8_t> blob) {
  Bytes input = {kind};
  input.insert(input.end(), blob.begin(), blob.end());
  return input;
}

void offers(std::span<const uint8_t> blob) {
  std::vector<selection::Offer> list, again;
  const Status status = selection::decode(blob, &list);
  if (!status.ok()) {
    HVD_PROMISE(status.code == HVD_INVALID && !status.message.empty());
    return;
  }
  HVD_PROMISE(list.size() <= selection::kMostOffers);
  Bytes written;
  HVD_PROMISE(selection::encode(list, &written).ok());
  HVD_PROMISE(selection::decode(written, &again).ok() && again.size() == list.size());
}

void place(std::span<const uint8_t> blob) {
  local::Address address, again;
  const Status status = local::decode(blob, &address);
  if (!status.ok()) {
    HVD_PROMISE(status.code == HVD_INVALID && !status.message.empty());
    return;
  }
  HVD_PROMISE(local::decode(local::encode(address), &again).ok());
  HVD_PROMISE(again.inner == address.inner && again.place.has_value() == address.place.has_value());
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
  switch (decisions.byte() % 3) {
    case 0: return offers(decisions.all());
    case 1: return place(decisions.all());
    default: return link(decisions.all());
  }
}

std::vector<Bytes> seeds() {
  std::vector<Bytes> result;
  Bytes blob;
  std::vector<selection::Offer> list(2);
  list[0].name = "gloo";
  list[0].address = {1, 2, 3, 4};
  list[0].memories = 1;
  list[1].name = "nccl";
  list[1].lacking = "no GPU";
  if (selection::encode(list, &blob).ok()) result.push_back(tagged(0, blob));
  local::Address address;
  address.inner = {9, 8, 7};
  result.push_back(tagged(1, local::encode(address)));
  address.place = local::Place{};
  address.place->process = 4711;
  result.push_back(tagged(1, local::encode(address)));
  hvdkit::Blob where;
  where.port = 4711;
  result.push_back(tagged(2, where.encode()));
  where.v6 = true;
  result.push_back(tagged(2, where.encode()));
  return result;
}

}  // namespace hvd::fuzz
