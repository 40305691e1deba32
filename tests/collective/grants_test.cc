// Which calls rank 0 grants a slot of the board, and which one.
#include "collective/grants.h"

#include <gtest/gtest.h>

#include <set>

#include "collective/matcher.h"

namespace hvd::collective {
namespace {

/// payload: bytes of data.
SignaturePtr call_of(const std::string& name, size_t payload, Kind kind = Kind::kAllreduce) {
  const auto call = std::make_shared<Signature>();
  call->kind = kind;
  call->name = call->key = name;
  call->payload = payload;
  call->specs = {{HVD_DTYPE_UINT8, {static_cast<int64_t>(payload)}}};
  return call;
}

/// Makes two equal calls: the grant of the second one.
Grant granted(Grants& grants, const std::string& name, size_t payload, Kind kind = Kind::kAllreduce) {
  const SignaturePtr call = call_of(name, payload, kind);
  static_cast<void>(grants.agreed(call, 0));
  return grants.agreed(call, 0);
}

TEST(Grants, WhatHasMuchDataTakesALargeSlot) {
  Grants grants;
  for (size_t i = 0; i < backend::kLargeSlots; ++i) {
    const Grant grant = granted(grants, "much " + std::to_string(i), i % 2 == 0 ? 49 : backend::kBoardBytes);
    EXPECT_NE(grant.number, 0u);
    EXPECT_LT(grant.slot, backend::kLargeSlots);
  }
  // Without one the data move in the backend.
  EXPECT_GE(granted(grants, "too much", 49).slot, backend::kLargeSlots);
  for (const size_t payload : {size_t{0}, backend::kSmallBytes, backend::kBoardBytes + 1, size_t{1} << 30}) {
    const Grant grant = granted(grants, "little or apart " + std::to_string(payload), payload);
    EXPECT_NE(grant.number, 0u);
    EXPECT_GE(grant.slot, backend::kLargeSlots);
  }
}

// A name whose data becomes larger takes another slot, and another name the one that it had.
TEST(Grants, ANameThatHasOutgrownItsSlotGivesItBack) {
  Grants grants;
  const Grant little = granted(grants, "x", 8), much = granted(grants, "x", 400),
              again = granted(grants, "x", 8), other = granted(grants, "y", 8);
  EXPECT_GE(little.slot, backend::kLargeSlots);
  EXPECT_LT(much.slot, backend::kLargeSlots);
  EXPECT_EQ(again.slot, much.slot) << "there is room enough";
  EXPECT_GT(again.number, much.number);
  EXPECT_EQ(other.slot, little.slot);
  EXPECT_GT(other.number, little.number) << "what is left of the first grant is known as such";
}

// A grant, whatever rank 0 says in it, may not make a rank write beyond a note.
TEST(Grants, OnlyWhatFitsIntoANoteIsLeftThere) {
  Signature call;
  for (const size_t payload :
       {backend::kSmallBytes, backend::kSmallBytes + 1, backend::kBoardBytes, backend::kBoardBytes + 1}) {
    call.payload = payload;
    EXPECT_EQ(runs_after_meeting(call, backend::kLargeSlots - 1), payload > backend::kBoardBytes) << payload;
    EXPECT_EQ(runs_after_meeting(call, backend::kLargeSlots), payload > backend::kSmallBytes) << payload;
  }
  static_assert(backend::kSmallBytes >= sizeof(uint64_t), "a number fits into each");
}

TEST(Grants, ANameThatHasOutgrownItsSlotKeepsItIfNoLargeOneIsLeft) {
  Grants grants;
  const Grant little = granted(grants, "x", 8);
  for (size_t i = 0; i < backend::kLargeSlots; ++i) granted(grants, "much " + std::to_string(i), 400);
  EXPECT_EQ(granted(grants, "x", 400).slot, little.slot);
}

// As in a program that goes through the variables of a model, step by step.
TEST(Grants, AsManyNamesAsSlotsAreGrantedInTurns) {
  Grants grants;
  std::set<uint32_t> slots;
  for (int step = 0; step < 2; ++step) {
    for (size_t i = 1; i < backend::kBoardSlots; ++i) {
      const Grant grant = grants.agreed(call_of(std::to_string(i), 8), 0);
      EXPECT_EQ(grant.number, step == 0 ? 0u : 1u) << i;
      if (grant.number != 0) slots.insert(grant.slot);
    }
  }
  EXPECT_EQ(slots.size(), backend::kBoardSlots - 1);
}

TEST(Grants, ChecksHaveASlotHoweverManyNamesRepeat) {
  constexpr size_t kNames = backend::kBoardSlots + 500;
  for (const size_t before : {size_t{0}, size_t{10}, kNames}) {
    Grants grants;
    std::set<uint32_t> slots;
    size_t names = 0;
    const auto name_repeats = [&] {
      const Grant grant = granted(grants, std::to_string(names++), 8);
      if (grant.number != 0) { EXPECT_TRUE(slots.insert(grant.slot).second) << grant.slot; }
    };
    while (names < before) name_repeats();
    const Grant check = granted(grants, kCheckName, 0, Kind::kAgree);
    EXPECT_NE(check.number, 0u);
    EXPECT_TRUE(slots.insert(check.slot).second);
    while (names < kNames) name_repeats();
    EXPECT_EQ(slots.size(), backend::kBoardSlots);
    EXPECT_EQ(*slots.rbegin(), backend::kBoardSlots - 1);
  }
}

}  // namespace
}  // namespace hvd::collective
