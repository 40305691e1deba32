// What MPI would take from a launcher of this process, and what it leaves behind in one that no launcher
// started.
#pragma once

#include <string>

namespace hvdmpi {

/// Takes from the environment of a driver's worker what would make MPI look for a group that the worker isn't
/// in.
void forget_launcher();

/// MPICH makes a segment in /dev/shm for processes of its launch on this host, and leaves it when the process
/// ends without MPI_Finalize. Of a process that no launcher started nobody else will look for it: its name is
/// removed at once.
void remove_segments();

/// Open MPI 4 starts a daemon beside each process, and as it starts it removes the host's session directory
/// if that is empty; another one that is about to make its own part there ends then, and its process with it.
/// While one of these lives the directory isn't empty. Does nothing where it can't.
class SessionHold {
 public:
  SessionHold();
  ~SessionHold();
  SessionHold(const SessionHold&) = delete;
  SessionHold& operator=(const SessionHold&) = delete;

 private:
  std::string path_;
};

}  // namespace hvdmpi
