// Signals by name: sigabbrev_np is not in C libraries before glibc 2.32, on which wheels run.
#pragma once

#include <csignal>
#include <string>

namespace hvd {

// "SIGKILL"; of a number without a name, as of real-time signals, "signal 40".
inline std::string signal_name(int number) {
  struct Name {
    int number;
    const char* text;
  };
  static constexpr Name kNames[] = {
      {SIGHUP, "HUP"},   {SIGINT, "INT"},   {SIGQUIT, "QUIT"}, {SIGILL, "ILL"},   {SIGTRAP, "TRAP"},
      {SIGABRT, "ABRT"}, {SIGBUS, "BUS"},   {SIGFPE, "FPE"},   {SIGKILL, "KILL"}, {SIGUSR1, "USR1"},
      {SIGSEGV, "SEGV"}, {SIGUSR2, "USR2"}, {SIGPIPE, "PIPE"}, {SIGALRM, "ALRM"}, {SIGTERM, "TERM"},
      {SIGCHLD, "CHLD"}, {SIGCONT, "CONT"}, {SIGSTOP, "STOP"}, {SIGTSTP, "TSTP"}, {SIGTTIN, "TTIN"},
      {SIGTTOU, "TTOU"}, {SIGURG, "URG"},   {SIGXCPU, "XCPU"}, {SIGXFSZ, "XFSZ"}, {SIGVTALRM, "VTALRM"},
      {SIGPROF, "PROF"}, {SIGIO, "IO"},     {SIGSYS, "SYS"},   {SIGPWR, "PWR"},   {SIGWINCH, "WINCH"},
  };
  for (const Name& name : kNames) {
    if (name.number == number) return std::string("SIG") + name.text;
  }
  return "signal " + std::to_string(number);
}

// "signal 9 (SIGKILL)", "signal 40".
inline std::string signal_text(int number) {
  const std::string plain = "signal " + std::to_string(number), name = signal_name(number);
  return name == plain ? plain : plain + " (" + name + ")";
}

}  // namespace hvd
