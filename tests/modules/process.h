// A rank as a process of the test's own program, which is given orders by its input and answers by its
// output.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

extern char** environ;

namespace hvd::backend::test {

inline void write_all(int fd, const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t done = ::write(fd, bytes, size);
    if (done <= 0) std::_Exit(90);
    bytes += done;
    size -= static_cast<size_t>(done);
  }
}

inline bool read_all(int fd, void* data, size_t size) {
  auto* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t done = ::read(fd, bytes, size);
    if (done <= 0) return false;
    bytes += done;
    size -= static_cast<size_t>(done);
  }
  return true;
}

struct Process {
  pid_t pid = -1;
  int in = -1, out = -1;  // its standard input and output

  /// SIGPIPE is at its default action in it, as a program has it.
  void start(std::vector<std::string> arguments) {
    int to[2], from[2];
    ASSERT_EQ(pipe2(to, O_CLOEXEC), 0);
    ASSERT_EQ(pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    sigset_t defaults;
    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    posix_spawnattr_setsigdefault(&attributes, &defaults);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    arguments.insert(arguments.begin(), "/proc/self/exe");
    std::vector<char*> words;
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    ASSERT_EQ(posix_spawn(&pid, words[0], &actions, &attributes, words.data(), environ), 0);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    in = to[1];
    out = from[0];
  }
  /// The next byte that it says; '!' if it has ended.
  char hear() {
    char c = '?';
    return read_all(out, &c, 1) ? c : '!';
  }
  /// How it has ended, as waitpid() tells.
  int wait() {
    int status = 0;
    waitpid(pid, &status, 0);
    close(in);
    close(out);
    return status;
  }
};

}  // namespace hvd::backend::test
