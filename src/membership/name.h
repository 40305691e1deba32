// The name of a host, which its workers and the records of all of them share.
#pragma once

#include <concepts>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace hvd::membership {

/// A text that never changes: a copy of it takes no memory of its own. It is used like a std::string.
class Name {
 public:
  Name() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  Name(std::string text) : text_(std::make_shared<const std::string>(std::move(text))) {}
  Name(const char* text) : Name(std::string(text)) {}
  operator const std::string&() const { return str(); }
  // NOLINTEND(google-explicit-constructor)

  const std::string& str() const {
    static const std::string empty;
    return text_ ? *text_ : empty;
  }

  /// Equal, without a look at the characters; false if only these tell.
  bool shares(const Name& other) const { return text_ == other.text_; }

  friend bool operator==(const Name& a, const Name& b) { return a.text_ == b.text_ || a.str() == b.str(); }
  template <std::convertible_to<std::string_view> Text>
  requires(!std::same_as<Text, Name>) friend bool operator==(const Name& a, const Text& b) {
    return a.str() == std::string_view(b);
  }

 private:
  std::shared_ptr<const std::string> text_;
};

}  // namespace hvd::membership
