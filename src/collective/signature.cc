// Builds, compares and remembers the part of a call that repeats.
#include "collective/signature.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/digest.h"
#include "collective/kinds/kind.h"
#include "numeric/dtype.h"

namespace hvd::collective {

namespace {

Duration whole(Duration timeout) {
  return std::chrono::ceil<std::chrono::milliseconds>(std::clamp(timeout, Duration::zero(), kMaxTimeout));
}

/// Factors are compared by their bits: a NaN equals itself.
bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

const std::vector<Tensor>& tensors_of(const Submission& s) {
  return row_of(s.kind).in_place ? s.outputs : s.inputs;
}

hvd_memory memory_of(const Submission& s) {
  const auto& tensors = tensors_of(s);
  return tensors.empty() ? hvd_memory{HVD_MEMORY_HOST} : tensors[0].memory;
}
bool tells_rooms(const Submission& s) { return row_of(s.kind).own_rows && memory_of(s) != HVD_MEMORY_HOST; }

template <class T>
void add(std::string* text, const T& value) {
  text->append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
void add_all(std::string* text, const T& values) {
  add(text, uint64_t{values.size()});
  text->append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
}

}  // namespace

int64_t spec_bytes(hvd_dtype dtype, std::span<const int64_t> shape) {
  const size_t element = dtype_size(dtype);
  if (element == 0) return -1;
  bool empty = false;
  int64_t bytes = static_cast<int64_t>(element);
  for (const int64_t extent : shape) {
    if (extent < 0) return -1;
    if (extent == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      return -1;
    }
  }
  return empty ? 0 : bytes;
}

std::string matching_key(const std::string& name, const std::string& set, std::span<const int32_t> members) {
  if (members.empty()) return name;
  std::string key = name;
  key += '\0';
  key += set;
  key += '\0';
  key += std::to_string(members.front());
  return key;
}

void Signature::seal() {
  key = matching_key(name, set, members);
  payload = 0;
  for (const Spec& spec : specs) {
    payload = payload_aligned(payload) + static_cast<size_t>(spec_bytes(spec.dtype, spec.shape));
  }
  std::string text;
  add_all(&text, name);
  add_all(&text, set);
  add(&text, kind);
  add(&text, reduction);
  add(&text, root);
  add(&text, prescale);
  add(&text, postscale);
  add(&text, memory);
  add(&text, place);
  add(&text, uint64_t{specs.size()});
  for (const Spec& spec : specs) {
    add(&text, spec.dtype);
    add_all(&text, spec.shape);
  }
  add_all(&text, splits);
  add_all(&text, rooms);
  add_all(&text, members);
  add(&text, priority);
  add(&text, timeout.count());
  const Digest all = hvd::digest(text.data(), text.size());
  std::memcpy(&digest, &all, sizeof digest);
  weight = text.size() + specs.size() * sizeof(Spec) + sizeof(Signature);
}

bool Signature::same_as(const Signature& o) const {
  return name == o.name && set == o.set && kind == o.kind && reduction == o.reduction && root == o.root &&
         same_bits(prescale, o.prescale) && same_bits(postscale, o.postscale) && memory == o.memory &&
         place == o.place && specs == o.specs && splits == o.splits && rooms == o.rooms &&
         members == o.members && priority == o.priority && timeout == o.timeout;
}

bool Signature::describes(const Submission& s, uint32_t where) const {
  if (kind != s.kind || priority != s.priority || name != s.name || timeout != whole(s.timeout)) return false;
  const Row& row = row_of(kind);
  if (row.rooted && root != s.root) return false;
  if (row.reduces &&
      (reduction != s.reduction || !same_bits(prescale, s.prescale) || !same_bits(postscale, s.postscale))) {
    return false;
  }
  if (members != s.members || set != s.set || splits != s.splits) return false;
  if (memory != memory_of(s) || place != where) return false;
  if (tells_rooms(s) && !std::equal(rooms.begin(), rooms.end(), s.outputs.begin(), s.outputs.end(),
                                    [](int64_t room, const Tensor& t) { return room == t.shape[0]; })) {
    return false;
  }
  const auto& tensors = tensors_of(s);
  return specs.size() == tensors.size() &&
         std::equal(specs.begin(), specs.end(), tensors.begin(), [](const Spec& spec, const Tensor& t) {
           return spec.dtype == t.dtype && t.shape == spec.shape;
         });
}

SignaturePtr make_signature(const Submission& s, uint32_t place) {
  auto signature = std::make_shared<Signature>();
  signature->name = s.name;
  signature->set = s.set;
  signature->kind = s.kind;
  const Row& row = row_of(s.kind);
  if (row.rooted) signature->root = s.root;
  if (row.reduces) {
    signature->reduction = s.reduction;
    signature->prescale = s.prescale;
    signature->postscale = s.postscale;
  }
  const auto& tensors = tensors_of(s);
  signature->memory = memory_of(s);
  signature->place = place;
  signature->specs.reserve(tensors.size());
  for (const Tensor& t : tensors) signature->specs.push_back({t.dtype, t.shape.vector()});
  signature->splits = s.splits;
  if (tells_rooms(s)) {
    for (const Tensor& t : s.outputs) signature->rooms.push_back(t.shape[0]);
  }
  signature->members = s.members;
  signature->priority = s.priority;
  signature->timeout = whole(s.timeout);
  signature->seal();
  return signature;
}

uint32_t Places::of(const Submission& s) {
  if (memory_of(s) == HVD_MEMORY_HOST) return 0;
  constexpr size_t kMost = 256;  // a program that makes a stream for each call has no use for more
  const Tensor& first = tensors_of(s)[0];
  const std::pair<int32_t, const void*> place{first.device, first.stream};
  auto it = std::find(known_.begin(), known_.end(), place);
  if (it == known_.end()) {
    if (known_.size() == kMost) return 0;
    it = known_.insert(it, place);
  }
  return static_cast<uint32_t>(it - known_.begin()) + 1;
}

SentSignatures::Found SentSignatures::find(const Submission& submission) {
  const uint32_t place = places_.of(submission);
  auto it = submission.members.empty()
                ? ids_.find(std::string_view(submission.name))
                : ids_.find(matching_key(submission.name, submission.set, submission.members));
  if (it != ids_.end()) {
    const SignaturePtr& known = slots_[it->second - 1];
    if (known->describes(submission, place)) return {known, it->second, true};
  }
  SignaturePtr signature = make_signature(submission, place);
  uint32_t id = 0;
  const auto release = [&](uint32_t slot) {
    weight_ -= slots_[slot - 1]->weight;
    slots_[slot - 1] = nullptr;
  };
  if (it != ids_.end()) {
    id = it->second;  // another call under the same name takes its place
    release(id);
  } else {
    id = next_ % kSignatures + 1;
    if (id > slots_.size()) slots_.resize(id);
    if (slots_[id - 1] != nullptr) {
      ids_.erase(slots_[id - 1]->key);
      release(id);
    }
  }
  if (weight_ + signature->weight > kSignatureBytes) {
    if (it != ids_.end()) ids_.erase(it);
    return {std::move(signature), 0, false};
  }
  if (it == ids_.end()) {
    ids_.emplace(signature->key, id);
    ++next_;
  }
  weight_ += signature->weight;
  slots_[id - 1] = signature;
  return {std::move(signature), id, false};
}

SignaturePtr ReceivedSignatures::interned(SignaturePtr signature) {
  const auto [begin, end] = interned_.equal_range(signature->digest);
  for (auto it = begin; it != end; ++it) {
    if (SignaturePtr same = it->second.lock(); same != nullptr && same->same_as(*signature)) return same;
  }
  if (interned_.size() >= sweep_at_) {
    std::erase_if(interned_, [](const auto& entry) { return entry.second.expired(); });
    sweep_at_ = std::max<size_t>(size_t{2} * kSignatures, 2 * interned_.size());
  }
  interned_.emplace(signature->digest, signature);
  return signature;
}

SignaturePtr ReceivedSignatures::remember(size_t rank, uint32_t id, SignaturePtr signature) {
  signature = interned(std::move(signature));
  if (id == 0) return signature;
  Rank& of = ranks_[rank];
  if (of.slots.size() < id) of.slots.resize(id);
  SignaturePtr& slot = of.slots[id - 1];
  if (slot != nullptr) of.weight -= slot->weight;
  slot = nullptr;
  if (of.weight + signature->weight > kSignatureBytes) return signature;  // it will be asked for again
  of.weight += signature->weight;
  slot = signature;
  return signature;
}

SignaturePtr ReceivedSignatures::find(size_t rank, uint32_t id, uint64_t digest) const {
  const Rank& of = ranks_[rank];
  if (id == 0 || id > of.slots.size()) return nullptr;
  const SignaturePtr& known = of.slots[id - 1];
  return known != nullptr && known->digest == digest ? known : nullptr;
}

}  // namespace hvd::collective
