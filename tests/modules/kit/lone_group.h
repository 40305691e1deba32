// The group of a generation that has one rank.
#pragma once

#include <vector>

#include "modules/kit/host_generation.h"

namespace hvdkit {

/// Of the generation, which it is assigned to; lives as long as that is connected.
struct LoneGroup {
  explicit LoneGroup(HostGeneration& generation) : address(generation.address()) {
    member.address = address.data();
    member.address_size = address.size();
    group.generation = 7;
    group.size = 1;
    group.members = &member;
    generation.assign(group);
  }
  LoneGroup(const LoneGroup&) = delete;
  LoneGroup& operator=(const LoneGroup&) = delete;

  const std::vector<uint8_t> address;
  hvd_backend_member member{};
  hvd_backend_group group{};
};

}  // namespace hvdkit
