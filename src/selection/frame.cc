// Encodes and checks the list of offers.
#include "selection/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace hvd::selection {
namespace {

// Layout, little-endian: magic, number of offers; then of each: length and bytes of the name, length and
// bytes of the reason, and where that is empty the three words and length and bytes of the address.
constexpr uint8_t kMagic[4] = {'h', 'v', 'B', 1};

class Writer {
 public:
  explicit Writer(std::vector<uint8_t>* out) : out_(*out) {}
  void bytes(const void* data, size_t size) {
    const auto* begin = static_cast<const uint8_t*>(data);
    out_.insert(out_.end(), begin, begin + size);
  }
  template <class Integer>
  void number(Integer value) {
    for (size_t i = 0; i < sizeof(Integer); ++i) out_.push_back(static_cast<uint8_t>(value >> (8 * i)));
  }
  void text(const std::string& text) {
    number(static_cast<uint8_t>(text.size()));
    bytes(text.data(), text.size());
  }

 private:
  std::vector<uint8_t>& out_;
};

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> in) : in_(in) {}
  bool take(size_t size, std::span<const uint8_t>* ret) {
    if (size > in_.size()) return false;
    *ret = in_.first(size);
    in_ = in_.subspan(size);
    return true;
  }
  template <class Integer>
  bool number(Integer* ret) {
    std::span<const uint8_t> bytes;
    if (!take(sizeof(Integer), &bytes)) return false;
    Integer value = 0;
    for (size_t i = 0; i < bytes.size(); ++i) value |= static_cast<Integer>(Integer{bytes[i]} << (8 * i));
    *ret = value;
    return true;
  }
  bool text(size_t longest, std::string* ret) {
    uint8_t size = 0;
    std::span<const uint8_t> bytes;
    if (!number(&size) || size > longest || !take(size, &bytes)) return false;
    ret->assign(bytes.begin(), bytes.end());
    return true;
  }
  bool done() const { return in_.empty(); }

 private:
  std::span<const uint8_t> in_;
};

bool read(Reader& reader, Offer* ret_offer) {
  Offer& offer = *ret_offer;
  if (!reader.text(kLongestName, &offer.name) || offer.name.empty()) return false;
  if (!reader.text(kLongestReason, &offer.lacking)) return false;
  if (!offer.brought()) return true;
  uint32_t size = 0;
  std::span<const uint8_t> address;
  if (!reader.number(&offer.memories) || !reader.number(&offer.dtypes) ||
      !reader.number(&offer.collectives) || !reader.number(&size) || size > kMostAddress ||
      !reader.take(size, &address)) {
    return false;
  }
  offer.address.assign(address.begin(), address.end());
  return true;
}

}  // namespace

Status encode(const std::vector<Offer>& offers, std::vector<uint8_t>* ret_blob) {
  if (offers.size() > kMostOffers) {
    return {HVD_INTERNAL, fmt::format("{} backends, expected at most {}", offers.size(), kMostOffers)};
  }
  std::vector<uint8_t> blob;
  Writer writer(&blob);
  writer.bytes(kMagic, sizeof(kMagic));
  writer.number(static_cast<uint8_t>(offers.size()));
  for (const Offer& offer : offers) {
    if (offer.name.empty() || offer.name.size() > kLongestName) {
      return {HVD_INTERNAL, fmt::format("backend '{}': its name has {} bytes, expected 1 to {}", offer.name,
                                        offer.name.size(), kLongestName)};
    }
    writer.text(offer.name);
    writer.text(offer.lacking.substr(0, kLongestReason));
    if (!offer.brought()) continue;
    writer.number(offer.memories);
    writer.number(offer.dtypes);
    writer.number(offer.collectives);
    writer.number(static_cast<uint32_t>(std::min(offer.address.size(), kMostAddress + 1)));
    writer.bytes(offer.address.data(), offer.address.size());
    if (blob.size() > kMostAddress) {
      return {HVD_INTERNAL,
              fmt::format("backend {}: its address of {} bytes is too long, expected at most {} "
                          "for all backends together",
                          offer.name, offer.address.size(), kMostAddress)};
    }
  }
  *ret_blob = std::move(blob);
  return {};
}

Status decode(std::span<const uint8_t> blob, std::vector<Offer>* ret_offers) {
  Reader reader(blob);
  std::span<const uint8_t> magic;
  uint8_t count = 0;
  if (!reader.take(sizeof(kMagic), &magic) || std::memcmp(magic.data(), kMagic, sizeof(kMagic)) != 0 ||
      !reader.number(&count) || count == 0 || count > kMostOffers) {
    return {HVD_INVALID, fmt::format("its {} bytes are no addresses of backends", blob.size())};
  }
  std::vector<Offer> offers(count);
  for (Offer& offer : offers) {
    if (!read(reader, &offer)) return {HVD_INVALID, "the address of a backend is cut off or damaged"};
  }
  if (!reader.done()) return {HVD_INVALID, "bytes follow the addresses of the backends"};
  if (!offers[0].brought()) return {HVD_INVALID, "it has no backend for host memory"};
  *ret_offers = std::move(offers);
  return {};
}

}  // namespace hvd::selection
