// Names of the tables of control.fbs, for headers that only name them: what flatc makes of that schema takes
// most of the time of a unit that includes it. wire/messages.h includes this, so the two can't differ.
#pragma once

#include <cstdint>

namespace hvd::wire {

enum class Refusal : uint8_t;

struct Envelope;
struct EnvelopeT;

struct AgentDrainT;
struct AgentOutputT;
struct AgentWelcomeT;
struct AssignmentT;
struct FeedCommitT;
struct FeedPieceT;
struct HelloT;
struct ProgressT;
struct ReadyT;
struct RefusedT;
struct RosterT;

}  // namespace hvd::wire
