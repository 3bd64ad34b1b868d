// Aligned columns, and texts that are cut to a number of columns of the screen.
#include "cli/table.h"

#include <gtest/gtest.h>

#include <fmt/core.h>

#include <set>
#include <string>
#include <vector>

#include "cli/terminal.h"

namespace kvant::cli {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

TEST(DisplayWidth, CountsColumnsOfTheScreen) {
  EXPECT_EQ(display_width(""), 0);
  EXPECT_EQ(display_width("model"), 5);
  EXPECT_EQ(display_width("größe"), 5);
  EXPECT_EQ(display_width("層"), 2);
  EXPECT_EQ(display_width("e\xCC\x81"), 1);         // e and a combining accent
  EXPECT_EQ(display_width("\xF0\x9F\xA6\x99"), 2);  // a llama
  EXPECT_EQ(display_width("a\xFF\x80z"), 4);        // no UTF-8
  EXPECT_EQ(display_width("a\xE5\xB1"), 3);         // cut off
}

TEST(Shortened, LosesItsMiddle) {
  EXPECT_EQ(shortened("abcdefghij", 10), "abcdefghij");
  EXPECT_EQ(shortened("abcdefghij", 9), "abcd…ghij");
  EXPECT_EQ(shortened("abcdefghij", 6), "ab…hij");
  EXPECT_EQ(shortened("abcdefghij", 1), "…");
  EXPECT_EQ(shortened("abcdefghij", 0), "");
  // A wide character is not cut in two.
  for (int width = 1; width <= 12; ++width) {
    const std::string text = shortened("層層層層層層", width);
    EXPECT_LE(display_width(text), width);
    EXPECT_GE(display_width(text), width - 2);
    EXPECT_EQ(text.find('\xFF'), std::string::npos);
  }
}

TEST(Shortened, OfANameTheNumbersStay) {
  const std::string name = "model.layers.12.self_attn.q_proj", expert = "model.layers.3.mlp.experts.17.gate_proj";
  EXPECT_EQ(shortened(name, 32), name);
  EXPECT_EQ(shortened(name, 31), "model.layer…12.self_attn.q_proj");
  EXPECT_EQ(shortened(name, 20), "…12.self_attn.q_proj");
  EXPECT_EQ(shortened(name, 19), "…12…elf_attn.q_proj");
  EXPECT_EQ(shortened(name, 12), "…12…n.q_proj");
  EXPECT_EQ(shortened(expert, 30), "mod…3.mlp.experts.17.gate_proj");
  EXPECT_EQ(shortened(expert, 20), "model…3…17.gate_proj");
  EXPECT_EQ(shortened(expert, 12), "…3…17…e_proj");
  EXPECT_EQ(shortened(expert, 8), "mod…proj");  // no room for more
  // Twelve columns, the fewest that a column of a table has, tell 100 layers apart.
  std::set<std::string> seen;
  for (int layer = 0; layer < 100; ++layer)
    for (const char* const module : {"self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"}) {
      const std::string text = shortened(fmt::format("model.layers.{}.{}", layer, module), 12);
      EXPECT_LE(display_width(text), 12);
      EXPECT_TRUE(seen.insert(text).second) << text;
    }
}

TEST(Wrapped, BreaksBetweenWords) {
  EXPECT_EQ(wrapped("one two three", 7, 2), "one two\n  three");
  EXPECT_EQ(wrapped("one two three", 80, 2), "one two three");
  EXPECT_EQ(wrapped("incomprehensibilities x", 5, 0), "incomprehensibilities\nx");
}

TEST(Table, AlignsColumns) {
  Table table({{"name"}, {"size", Column::Align::right}, {"why"}});
  table.add({"größe", "1", "x"});
  table.add({"層", "12345", ""});
  table.add({"a"});
  EXPECT_EQ(table.text(Terminal()),
            "name    size  why\n"
            "größe      1  x\n"
            "層     12345\n"
            "a\n");
}

TEST(Table, FitsTheTerminalWhereColumnsShrink) {
  Table table(
      {{"tensor", Column::Align::left, true}, {"size", Column::Align::right}, {"why", Column::Align::left, true}});
  table.add({"model.layers.0.self_attn.q_proj.weight", "524 kB", "a 2-D weight that is quantized"});
  table.add({"model.norm.weight", "1.02 kB", "a norm"});
  for (const int width : {120, 80, 60, 40}) {
    std::size_t widest = 0;
    for (const std::string& line : lines_of(table.text(Terminal(), width)))
      widest = std::max(widest, static_cast<std::size_t>(display_width(line)));
    EXPECT_LE(widest, static_cast<std::size_t>(width));
  }
  // Not to nothing.
  for (const std::string& line : lines_of(table.text(Terminal(), 10))) EXPECT_GE(display_width(line), 20) << line;
  EXPECT_NE(table.text(Terminal(), 60).find("…"), std::string::npos);
  // Nothing is cut where the line may have any length, nor what does not shrink.
  EXPECT_EQ(table.text(Terminal()).find("…"), std::string::npos);
  EXPECT_NE(table.text(Terminal(), 30).find("1.02 kB"), std::string::npos);
}

TEST(Table, LeavesOutOptionalColumnsBeforeNamesSuffer) {
  Table table({{"tensor", Column::Align::left, true},
               {"dtype", Column::Align::left, false, true},
               {"size", Column::Align::right},
               {"shard", Column::Align::left, true, true}});
  table.add({"model.layers.0.self_attn.q_proj.weight", "BF16", "524 kB", "model-00001-of-00002.safetensors"});
  EXPECT_EQ(table.text(Terminal(), 85),
            "tensor                                dtype    size  shard\n"
            "model.laye…0.self_attn.q_proj.weight  BF16   524 kB  model-00001-of-00002.safetensors\n");
  EXPECT_EQ(table.text(Terminal(), 55),
            "tensor                                  dtype    size\n"
            "model.layers.0.self_attn.q_proj.weight  BF16   524 kB\n");
  EXPECT_EQ(table.text(Terminal(), 40),
            "tensor                              size\n"
            "model.…0.self_attn.q_proj.weight  524 kB\n");
}

TEST(Table, HasBoldTitlesWhereThereIsColor) {
  Table table({{"name"}});
  table.add({"x"});
  Terminal terminal;
  terminal.color = true;
  EXPECT_EQ(table.text(terminal), "\x1b[1mname\x1b[0m\nx\n");
}

}  // namespace
}  // namespace kvant::cli
