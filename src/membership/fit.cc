// Whether what a worker brings fits what the members bring, and who of the beginners does not.
#include "membership/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace hvd::membership {
namespace {

const Offer* find(const std::vector<Offer>& offers, const std::string& backend) {
  const auto found =
      std::find_if(offers.begin(), offers.end(), [&](const Offer& o) { return o.backend == backend; });
  return found == offers.end() ? nullptr : &*found;
}

const std::string* find(const std::vector<Setting>& settings, const std::string& name) {
  const auto found =
      std::find_if(settings.begin(), settings.end(), [&](const Setting& s) { return s.name == name; });
  return found == settings.end() ? nullptr : &found->value;
}

std::string host_backend(const std::vector<Offer>& offers) {
  return offers.empty() ? "none" : offers.front().backend;
}

std::string other_setting(const std::vector<Setting>& expected, const std::vector<Setting>& given) {
  for (const Setting& setting : expected) {
    const std::string* value = find(given, setting.name);
    if (value == nullptr) {
      return fmt::format("it does not say what {} is: on the other workers {}", setting.name, setting.value);
    }
    if (*value == setting.value) continue;
    return fmt::format("{} is {}, on the other workers {}: expected the same everywhere", setting.name,
                       *value, setting.value);
  }
  for (const Setting& setting : given) {
    if (find(expected, setting.name) == nullptr) {
      return fmt::format("{} is {}, and the other workers don't know of it", setting.name, setting.value);
    }
  }
  return "";
}

/// What both bring, and of that what both can do.
void narrow(std::vector<Offer>& common, const std::vector<Offer>& offers) {
  std::erase_if(common, [&](Offer& offer) {
    const Offer* other = find(offers, offer.backend);
    if (other == nullptr || !other->brought()) return true;
    offer.memories &= other->memories;
    offer.dtypes &= other->dtypes;
    offer.collectives &= other->collectives;
    return false;
  });
}

}  // namespace

Terms terms_of(const std::vector<Setting>& settings, const std::vector<const std::vector<Offer>*>& offers) {
  Terms terms{settings, {}};
  for (const Offer& offer : *offers.front()) {
    if (!offer.brought()) continue;
    terms.offers.push_back({offer.backend, "", offer.memories, offer.dtypes, offer.collectives, {}});
  }
  for (const std::vector<Offer>* of_one : offers) narrow(terms.offers, *of_one);
  return terms;
}

std::string misfit(const Terms& terms, const ReadyEvent& event) {
  if (std::string why = other_setting(terms.settings, event.settings); !why.empty()) return why;
  if (const std::string ours = host_backend(terms.offers), its = host_backend(event.offers); ours != its) {
    return fmt::format(
        "its backend for host memory is {}, that of the other workers {}: expected the same "
        "everywhere (option backend)",
        its, ours);
  }
  for (const Offer& needed : terms.offers) {
    const Offer* offer = find(event.offers, needed.backend);
    if (offer == nullptr) {
      return fmt::format("it leaves out backend {}, which the other workers use (option backend)",
                         needed.backend);
    }
    if (!offer->brought()) {
      return fmt::format("it lacks backend {}, which the other workers use: {}", needed.backend,
                         offer->lacking);
    }
    const bool less = (needed.memories & ~offer->memories) != 0 || (needed.dtypes & ~offer->dtypes) != 0 ||
                      (needed.collectives & ~offer->collectives) != 0;
    if (less) {
      return fmt::format(
          "its backend {} can do less than that of the other workers: memories {:#x}, dtypes {:#x}, collectives "
          "{:#x}, expected {:#x}, {:#x}, {:#x}",
          needed.backend, offer->memories, offer->dtypes, offer->collectives, needed.memories, needed.dtypes,
          needed.collectives);
    }
  }
  return "";
}

std::string too_long(size_t bytes, size_t size) {
  const size_t most = kMostAddresses / std::max<size_t>(size, 1);
  if (bytes <= most) return "";
  return fmt::format("its addresses have {} bytes: expected at most {} in a generation of {}", bytes, most,
                     size);
}

std::string beginning_terms(const ReadyEvent& event) {
  std::map<std::string_view, std::string_view> settings;
  for (const Setting& setting : event.settings) settings.emplace(setting.name, setting.value);
  std::string terms;
  const auto append = [&](std::string_view text) {
    terms.append(fmt::format("{}:", text.size())).append(text);
  };
  append(host_backend(event.offers));
  for (const auto& [name, value] : settings) {
    append(name);
    append(value);
  }
  return terms;
}

}  // namespace hvd::membership
