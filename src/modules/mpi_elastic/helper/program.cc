// Starts a child, reads its lines, ends it.
#include "modules/mpi_elastic/helper/program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace hvdmpi::helper {
namespace {

constexpr unsigned kStepUs = 5000;
constexpr int kSteps = 100;  // half a second
constexpr size_t kLongestLine = size_t{64} << 10;

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

std::string find_program(const std::string& name) {
  const auto runs = [](const std::string& path) { return access(path.c_str(), X_OK) == 0; };
  if (name.find('/') != std::string::npos) return runs(name) ? name : "";
  const char* const variable = ::secure_getenv("PATH");
  const std::string folders = variable != nullptr ? variable : "/usr/local/bin:/usr/bin:/bin";
  for (size_t begin = 0; begin <= folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string path = folders.substr(begin, end - begin) + "/" + name;
    if (end > begin && runs(path)) return path;
    begin = end + 1;
  }
  return "";
}

bool Program::start(const std::vector<std::string>& arguments, const std::vector<std::string>& environment) {
  std::vector<std::string> words = arguments, variables = environment;
  const std::vector<char*> argv = pointers(words), envp = pointers(variables);
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return false;
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const pid_t parent = getpid();
  pid_ = fork();  // this process has one thread
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(127);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    signal(SIGPIPE, SIG_DFL);
    dup2(nothing, 0);
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    execve(argv[0], argv.data(), envp.data());
    dprintf(2, "%s: %s\n", argv[0], std::strerror(errno));
    _exit(127);
  }
  close(ends[1]);
  if (nothing >= 0) close(nothing);
  output_ = ends[0];
  fcntl(output_, F_SETFL, O_NONBLOCK);
  return pid_ > 0;
}

void Program::read(const std::function<void(const std::string& line)>& line) {
  char bytes[4096];
  while (output_ >= 0) {
    const ssize_t size = ::read(output_, bytes, sizeof bytes);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) break;
    if (size <= 0) {
      close(output_);
      output_ = -1;
      break;
    }
    heard_.append(bytes, static_cast<size_t>(size));
    for (size_t end = 0; (end = heard_.find('\n')) != std::string::npos; heard_.erase(0, end + 1))
      line(heard_.substr(0, end));
    if (heard_.size() > kLongestLine) heard_.clear();  // nobody's address
  }
}

std::optional<std::string> Program::ended() {
  if (pid_ <= 0) return std::nullopt;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  pid_ = -1;
  if (WIFEXITED(status)) return "exited with status " + std::to_string(WEXITSTATUS(status));
  return "was killed by signal " + std::to_string(WTERMSIG(status));
}

void Program::end() {
  if (pid_ <= 0) return;
  kill(pid_, SIGTERM);
  for (int i = 0; i < kSteps; ++i) {
    if (ended()) return;
    usleep(kStepUs);
  }
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

}  // namespace hvdmpi::helper
