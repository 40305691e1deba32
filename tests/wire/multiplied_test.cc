// Messages in which a text or table is referred to many times are refused, wherever the schema has a vector
// of either: whoever adds one and does not weigh it is told here.
#include <flatbuffers/reflection.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "wire/messages.h"

namespace hvd::wire {
namespace {

using reflection::BaseType;
using reflection::Field;
using Reference = flatbuffers::Offset<flatbuffers::String>;  // or of a table: the builder does not look

constexpr size_t kHeavy = 10000, kTimes = 5000;  // 50 MB out of less than 100 KB

/// Of a body's table: from field to field down to a vector of references.
using Path = std::vector<const Field*>;

class Forge {
 public:
  explicit Forge(const std::string& file) {
    std::ifstream stream(file, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(stream), {});
    flatbuffers::Verifier verifier(reinterpret_cast<const uint8_t*>(bytes_.data()), bytes_.size());
    if (!reflection::VerifySchemaBuffer(verifier)) throw Error(HVD_INVALID, file + " is no schema");
    schema_ = reflection::GetSchema(bytes_.data());
  }

  /// Every table of the union, by its number there.
  void each_body(const std::function<void(uint8_t, const reflection::Object&)>& visit) const {
    const auto* body = schema_->enums()->LookupByKey("hvd.wire.Body");
    for (const auto* value : *body->values()) {
      if (value->value() != 0)
        visit(static_cast<uint8_t>(value->value()), *schema_->objects()->Get(value->union_type()->index()));
    }
  }

  /// All that lead to a vector of texts, or of tables that hold more than numbers.
  void each_path(const reflection::Object& table, Path& path,
                 const std::function<void(const Path&)>& visit) const {
    for (const Field* field : *table.fields()) {
      path.push_back(field);
      const reflection::Type& type = *field->type();
      const bool many = type.base_type() == BaseType::Vector;
      const BaseType base = many ? type.element() : type.base_type();
      if (many && (base == BaseType::String || (is_table(type, base) && holds_more(table_of(type)))))
        visit(path);
      if (is_table(type, base)) each_path(table_of(type), path, visit);
      path.pop_back();
    }
  }

  /// A message whose vector at the path's end refers to one heavy thing so many times.
  Bytes message(uint8_t body_type, const reflection::Object& body, const Path& path, size_t times) {
    flatbuffers::FlatBufferBuilder b;
    const Reference made = along(b, body, path, 0, times);
    const auto job = b.CreateString("j");
    FinishEnvelopeBuffer(b, CreateEnvelope(b, job, 1, 1, 1, static_cast<Body>(body_type), made.Union()));
    return Bytes(b.GetBufferPointer(), b.GetBufferPointer() + b.GetSize());
  }

 private:
  const reflection::Object& table_of(const reflection::Type& type) const {
    return *schema_->objects()->Get(type.index());
  }
  bool is_table(const reflection::Type& type, BaseType base) const {
    return base == BaseType::Obj && !table_of(type).is_struct();
  }
  bool holds_more(const reflection::Object& table) const {
    for (const Field* field : *table.fields()) {
      const reflection::Type& type = *field->type();
      if (type.base_type() == BaseType::String || type.base_type() == BaseType::Vector) return true;
      if (is_table(type, type.base_type()) && holds_more(table_of(type))) return true;
    }
    return false;
  }

  Reference along(flatbuffers::FlatBufferBuilder& b, const reflection::Object& table, const Path& path,
                  size_t at, size_t times) {
    const Field* next = path[at];
    const reflection::Type& type = *next->type();
    Reference made;
    if (at + 1 < path.size()) {
      made = along(b, table_of(type), path, at + 1, times);
      if (type.base_type() == BaseType::Vector) made = vector_of(b, made, 1);
    } else {
      const bool texts = type.element() == BaseType::String;
      made = vector_of(b, texts ? text(b) : heavy(b, table_of(type)), times);
    }
    return finish(b, table, [&](const Field& field) { return &field == next ? made : Reference(); });
  }

  /// With as much in each field as goes in.
  Reference heavy(flatbuffers::FlatBufferBuilder& b, const reflection::Object& table) {
    std::vector<std::pair<const Field*, Reference>> made;
    for (const Field* field : *table.fields()) {
      if (const Reference value = heavy(b, *field->type()); !value.IsNull()) made.emplace_back(field, value);
    }
    return finish(b, table, [&](const Field& field) {
      for (const auto& [of, value] : made) {
        if (of == &field) return value;
      }
      return Reference();
    });
  }

  Reference heavy(flatbuffers::FlatBufferBuilder& b, const reflection::Type& type) {
    if (type.base_type() == BaseType::String) return text(b);
    if (is_table(type, type.base_type())) return heavy(b, table_of(type));
    if (type.base_type() != BaseType::Vector) return {};
    if (type.element() == BaseType::String) return vector_of(b, text(b), 1);
    if (is_table(type, type.element())) return vector_of(b, heavy(b, table_of(type)), 1);
    const bool structs = type.element() == BaseType::Obj;
    const size_t size = structs ? static_cast<size_t>(table_of(type).bytesize()) : type.element_size();
    if (!std::has_single_bit(size)) return {};  // of none of those that are referred to many times
    uint8_t* bytes = nullptr;
    const Reference made(b.CreateUninitializedVector(kHeavy / size, size, &bytes));
    std::fill_n(bytes, kHeavy / size * size, 0);
    return made;
  }

  static Reference text(flatbuffers::FlatBufferBuilder& b) {
    return b.CreateString(std::string(kHeavy, 't'));
  }
  static Reference vector_of(flatbuffers::FlatBufferBuilder& b, Reference one, size_t times) {
    return Reference(b.CreateVector(std::vector<Reference>(times, one)).o);
  }

  /// Fields that are required and not given are small.
  Reference finish(flatbuffers::FlatBufferBuilder& b, const reflection::Object& table,
                   const std::function<Reference(const Field&)>& given) {
    std::vector<std::pair<uint16_t, Reference>> fields;
    for (const Field* field : *table.fields()) {
      Reference value = given(*field);
      if (value.IsNull() && field->required()) value = small(b, *field->type());
      if (!value.IsNull()) fields.emplace_back(field->offset(), value);
    }
    const auto start = b.StartTable();
    for (const auto& [offset, value] : fields) b.AddOffset(offset, value);
    return Reference(b.EndTable(start));
  }

  Reference small(flatbuffers::FlatBufferBuilder& b, const reflection::Type& type) {
    if (type.base_type() == BaseType::String) return b.CreateString("s");
    return Reference(b.CreateVector(std::vector<Reference>()).o);
  }

  std::string bytes_;
  const reflection::Schema* schema_;
};

std::string verdict(const Bytes& bytes) {
  try {
    decode(bytes);
  } catch (const Error& e) { return e.what(); }
  return "accepted";
}

TEST(Multiplied, EveryVectorOfReferencesIsWeighed) {
  Forge forge(HVD_TEST_SCHEMA);
  std::vector<std::string> seen;
  forge.each_body([&](uint8_t number, const reflection::Object& body) {
    Path path;
    forge.each_path(body, path, [&](const Path& to) {
      std::string name = body.name()->str();
      for (const Field* field : to) name += "." + field->name()->str();
      SCOPED_TRACE(name);
      EXPECT_EQ(verdict(forge.message(number, body, to, 1)), "accepted");
      const Bytes bytes = forge.message(number, body, to, kTimes);
      EXPECT_LT(bytes.size(), size_t{100000});
      EXPECT_NE(verdict(bytes).find("unpacks to more"), std::string::npos) << verdict(bytes);
      seen.push_back(name);
    });
  });
  const auto has = [&](const char* name) { return std::find(seen.begin(), seen.end(), name) != seen.end(); };
  EXPECT_TRUE(has("hvd.wire.Assignment.roster.profiles.backends"));
  EXPECT_TRUE(has("hvd.wire.Resume.ready.settings"));
  EXPECT_TRUE(has("hvd.wire.FeedCommit.items"));
  EXPECT_TRUE(has("hvd.wire.AgentStart.argv"));
}

}  // namespace
}  // namespace hvd::wire
