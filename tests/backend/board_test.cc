// Ranks as threads on one board: of each round all say the same, and read what the others had left there.
#include "backend/board.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <thread>

#include "board_memory.h"

namespace hvd::backend {
namespace {

using State = Board::State;

struct Shared {
  explicit Shared(size_t size) : notes(hvd::testing::board_notes(size)) {
    std::vector<BoardNotes*> all;
    for (size_t r = 0; r < size; ++r) all.push_back(&notes[r]);
    for (size_t r = 0; r < size; ++r) {
      boards.push_back(
          std::make_unique<Board>(all, static_cast<int32_t>(r), &words, size > 2, nullptr, nullptr));
    }
  }
  std::shared_ptr<BoardNotes[]> notes;
  BoardWords words{};
  std::vector<std::unique_ptr<Board>> boards;
};

uint64_t value(size_t rank, uint64_t round) { return rank * 1'000'003 + round; }

TEST(Board, AllMeetOrNobodyDoes) {
  for (const size_t size : {2, 3, 5}) {
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      Shared shared(size);
      shared.boards[0]->open(7, 3);
      std::vector<uint64_t> met(size);
      std::vector<std::thread> threads;
      for (size_t rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
          Board& board = *shared.boards[rank];
          std::mt19937_64 random(seed * 100 + rank);
          for (uint64_t round = 1;; ++round) {
            Board::Meeting meeting{7, 3, round};
            const uint64_t mine = value(rank, round);
            std::memcpy(board.room(meeting), &mine, sizeof mine);
            board.arrive(meeting, round % 5);
            const uint64_t patience = random() % 300 == 0 ? random() % 50 : ~uint64_t{0};
            State state = board.look(meeting);
            for (uint64_t looks = 0; state == State::kOpen && looks < patience; ++looks) {
              if (looks % 8 == 7) std::this_thread::yield();
              state = board.look(meeting);
            }
            if (state == State::kOpen) state = board.close(meeting);
            ASSERT_NE(state, State::kOpen);
            if (state == State::kClosed) return;
            for (size_t other = 0; other < size; ++other) {
              uint64_t theirs = 0;
              std::memcpy(&theirs, board.data(other, meeting), sizeof theirs);
              ASSERT_EQ(theirs, value(other, round)) << "rank " << rank << " round " << round;
              ASSERT_EQ(board.checks(other, meeting), round % 5);
            }
            met[rank] = round;
          }
        });
      }
      for (std::thread& thread : threads) thread.join();
      for (size_t rank = 1; rank < size; ++rank) EXPECT_EQ(met[rank], met[0]) << "seed " << seed;
    }
  }
}

TEST(Board, AnotherGrantIsClosed) {
  Shared shared(2);
  shared.boards[0]->open(0, 1);
  Board::Meeting old{0, 1, 1}, none{1, 1, 1};
  shared.boards[0]->arrive(old, 0);
  EXPECT_EQ(shared.boards[0]->look(old), State::kOpen);
  EXPECT_EQ(shared.boards[1]->close(old), State::kClosed);
  shared.boards[0]->open(0, 2);
  EXPECT_EQ(shared.boards[0]->look(old), State::kClosed);
  EXPECT_EQ(shared.boards[0]->close(old), State::kClosed);
  EXPECT_EQ(shared.boards[0]->look(none), State::kClosed);
  Board::Meeting anew{0, 2, 1};
  EXPECT_EQ(shared.boards[1]->look(anew), State::kOpen)
      << "what was left there under the old grant does not count";
}

TEST(Board, WhoGivesUpTooLateHasMet) {
  Shared shared(2);
  shared.boards[0]->open(0, 1);
  Board::Meeting first{0, 1, 1}, second{0, 1, 1}, next{0, 1, 2};
  shared.boards[0]->arrive(first, 0);
  shared.boards[1]->arrive(second, 0);
  EXPECT_EQ(shared.boards[1]->look(second), State::kMet);
  shared.boards[1]->arrive(next, 0);
  EXPECT_EQ(shared.boards[1]->close(next), State::kClosed);
  EXPECT_EQ(shared.boards[0]->close(first), State::kMet);
  EXPECT_EQ(shared.boards[0]->look(next), State::kClosed);
}

}  // namespace
}  // namespace hvd::backend
