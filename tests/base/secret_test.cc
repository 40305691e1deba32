// Which files a secret is taken from.
#include "base/secret.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "base/status.h"

namespace hvd {
namespace {

constexpr uid_t kNobody = 65534;

class SecretFile : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/hvd-secret-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory_ = name;
    path_ = directory_ + "/secret";
  }
  void TearDown() override {
    ::unlink(path_.c_str());
    ::rmdir(directory_.c_str());
  }

  void write(const std::string& text, mode_t mode = 0600) {
    std::ofstream(path_, std::ios::binary) << text;
    ASSERT_EQ(::chmod(path_.c_str(), mode), 0);
  }

  /// Why it is refused; "" if it is not.
  static std::string refusal(const std::string& path) {
    try {
      read_secret_file(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code, HVD_INVALID);
      return error.what();
    }
    return "";
  }

  std::string directory_, path_;
};

TEST_F(SecretFile, ItsFirstLineIsTheSecret) {
  for (const char* text : {"secret of mine", "secret of mine\n", "secret of mine \t\r\nand more\n"}) {
    write(text);
    EXPECT_EQ(read_secret_file(path_), "secret of mine");
  }
}

TEST_F(SecretFile, WithoutALineOrWithOneTooLongIsRefused) {
  for (const char* text : {"", "\nsecret\n", " \n"}) {
    write(text);
    EXPECT_NE(refusal(path_).find("empty first line"), std::string::npos) << refusal(path_);
  }
  write(std::string(1025, 'x'));
  EXPECT_NE(refusal(path_).find("more than 1024 characters"), std::string::npos);
  EXPECT_EQ(refusal(path_).find("xxx"), std::string::npos) << "a refusal shows nothing of it";
  EXPECT_NE(refusal(directory_ + "/none").find("can't be opened: No such file"), std::string::npos);
}

TEST_F(SecretFile, ThatOthersCanReadOrChangeIsRefused) {
  for (const mode_t mode : {0640, 0620, 0604, 0602, 0610, 0601, 0666}) {
    write("secret\n", mode);
    EXPECT_NE(refusal(path_).find("others can read or change it; expected 600 or less"), std::string::npos)
        << mode;
  }
  write("secret\n", 0400);
  EXPECT_EQ(refusal(path_), "");
}

/// systemd's credentials and Kubernetes' secrets with fsGroup are root's, and readable by one group.
TEST_F(SecretFile, OfRootsMayBeReadableByItsGroupForOthers) {
  if (::geteuid() != 0) GTEST_SKIP() << "giving a file to another group needs root";
  ASSERT_EQ(::chmod(directory_.c_str(), 0755), 0);
  for (const mode_t mode : {0440, 0640, 0444, 0660, 0650, 0600}) {
    write("secret\n", mode);
    ASSERT_EQ(::chown(path_.c_str(), 0, kNobody), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      const bool away = ::setgid(kNobody) == 0 && ::setuid(kNobody) == 0;
      const std::string why = refusal(path_);
      const bool right = mode == 0440 || mode == 0640 ? why.empty()
                         : mode == 0600               ? why.find("Permission denied") != std::string::npos
                                                      : why.find("expected 640 or less") != std::string::npos;
      ::_exit(away && right ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << std::oct << mode;
  }
}

TEST_F(SecretFile, ThatIsNoRegularFileIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);  // nobody writes
  EXPECT_EQ(refusal(path_),
            "secret file " + path_ + " is a FIFO: expected a regular file, or - for standard input");
  EXPECT_NE(refusal(directory_).find("is a directory"), std::string::npos);
  EXPECT_NE(refusal("/dev/null").find("is a device"), std::string::npos);
}

}  // namespace
}  // namespace hvd
