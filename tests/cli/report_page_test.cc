// The report as text: what must be in it, what must never be, and how large it may become.
#include "cli/report/page.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/report/chart.h"
#include "cli/report/html.h"
#include "cli/report/png.h"

namespace kvant::cli {
namespace {

using measure::Comparison;
using measure::LayerDetail;
using measure::LayerDetails;
using measure::LayerLoss;
using measure::ModelLoss;
using model::LayerKind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::size_t count_of(std::string_view text, std::string_view part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

// From the first `begin` up to the next `end`.
std::string_view between(std::string_view text, std::string_view begin, std::string_view end) {
  const std::size_t from = text.find(begin);
  if (from == std::string_view::npos) return {};
  return text.substr(from, text.find(end, from + begin.size()) - from);
}

// The page without style and script, which are the same in all pages.
std::string markup(const std::string& page) {
  std::string text = page;
  for (const auto& [begin, end] : {std::pair{"<style>", "</style>"}, {"<script>", "</script></html>"}}) {
    const std::size_t from = text.find(begin);
    const std::size_t to = text.rfind(end);
    EXPECT_LT(from, to);
    text.erase(from, to - from);
  }
  return text;
}

// The names of start tags of `html`, as a browser finds them: attributes in quotes may hold anything.
std::multiset<std::string> tags_of(std::string_view html, bool ends) {
  std::multiset<std::string> tags;
  for (std::size_t i = 0; i < html.size(); ++i) {
    if (html[i] != '<') continue;
    const bool end = i + 1 < html.size() && html[i + 1] == '/';
    std::string name;
    std::size_t at = i + 1 + (end ? 1 : 0);
    while (at < html.size() && std::isalnum(static_cast<unsigned char>(html[at])) != 0) name += html[at++];
    char quote = 0;
    while (at < html.size() && (quote != 0 || html[at] != '>')) {
      if (quote != 0 && html[at] == quote)
        quote = 0;
      else if (quote == 0 && html[at] == '"')
        quote = '"';
      ++at;
    }
    // Elements of SVG may close themselves.
    if (end == ends && html[at - 1] != '/') tags.insert(name);
    i = at;
  }
  return tags;
}

void expect_balanced(const std::string& page) {
  const std::string html = markup(page);
  const auto begins = tags_of(html, false);
  const auto ends = tags_of(html, true);
  for (const char* tag :
       {"svg",     "g",      "defs",  "filter", "text",   "section", "div",  "figure", "figcaption", "table", "details",
        "summary", "button", "a",     "span",   "b",      "small",   "ul",   "h1",     "h2",         "h3",    "main",
        "header",  "footer", "label", "select", "output", "title",   "code", "i",      "em"})
    EXPECT_EQ(begins.count(tag), ends.count(tag)) << tag;
}

LayerLoss layer(std::string module, double sqnr_db, LayerKind kind = LayerKind::other) {
  LayerLoss loss;
  loss.module = std::move(module);
  loss.kind = kind;
  loss.rows = 6;
  loss.columns = 4;
  loss.sqnr_db = sqnr_db;
  loss.mse = 1.2345678901234567e-7;
  loss.cosine = 0.99999123456789;
  loss.largest_error = 0.1;
  loss.at_ends = 1.0 / 3;
  return loss;
}

LayerDetail detail(std::size_t points = 3, bool inputs = true) {
  LayerDetail d;
  d.histogram.counts.assign(measure::kHistogramBins, 0);
  for (std::size_t i = 0; i < measure::kHistogramBins; ++i)
    d.histogram.counts[i] =
        static_cast<std::uint64_t>(5000 * std::exp(-std::pow((static_cast<double>(i) - 128) / 40, 2)));
  d.histogram.weights = 640000;
  const auto value = [](std::size_t i, double scale) {
    return std::strtod(fmt::format("{:.4g}", scale * (1.1 + std::sin(static_cast<double>(i * i)))).c_str(), nullptr);
  };
  for (std::size_t i = 0; i < points; ++i) {
    d.channels.least.push_back(value(i, 0.001));
    d.channels.largest.push_back(value(i, 0.002));
    d.channels.sqnr_db.push_back(value(i, 20));
    if (!inputs) continue;
    d.inputs.before.push_back(value(i, 10));
    d.inputs.after.push_back(value(i, 2));
    d.inputs.smoothing_least.push_back(value(i, 0.5));
    d.inputs.smoothing_largest.push_back(value(i, 1));
  }
  d.strip.rows = 2;
  d.strip.columns = 3;
  d.strip.rms = {0, 0.1, 0.2, 0.3, 0.4, 0.8};
  for (std::size_t i = 0; i < measure::kLargestErrors; ++i)
    d.largest_errors.push_back({i, i + 1, 0.123456789012345, 0.1});
  return d;
}

Comparison comparison(std::vector<LayerLoss> layers) {
  Comparison c;
  c.original = "/models/original";
  ModelLoss model;
  model.label = "small-w8a8";
  model.layers = std::move(layers);
  model.bytes = 1000;
  c.bytes = 4000;
  c.quantized.push_back(std::move(model));
  return c;
}

TEST(Html, EscapesForPeople) {
  EXPECT_EQ(html_text("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html_text("\x1b[0m\n"), "␛[0m␊");
  EXPECT_EQ(html_text(std::string_view("\0", 1)), "␀");
  EXPECT_EQ(html_text("\xFF\xC3"), "\uFFFD\uFFFD");
  EXPECT_EQ(html_text("a\u202Eb"), "a\uFFFDb");
  EXPECT_EQ(html_text("größe 層"), "größe 層");
  const std::string cut = html_text(std::string(150, '<') + std::string(150, '>'));
  EXPECT_EQ(count_of(cut, "&lt;"), 100u);
  EXPECT_EQ(count_of(cut, "&gt;"), 99u);
  EXPECT_EQ(count_of(cut, "…"), 1u);
  // Cut between characters, also of several bytes.
  std::string wide;
  for (int i = 0; i < 300; ++i) wide += "層";
  EXPECT_FALSE(contains(html_text(wide), "\uFFFD"));
  EXPECT_EQ(count_of(html_text(wide), "層"), 199u);
  EXPECT_EQ(html_whole_text(wide), wide);
}

TEST(Html, EscapesForPrograms) {
  EXPECT_EQ(html_attribute("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(html_attribute("\x1b\n"), "&#27;&#10;");
  EXPECT_EQ(html_attribute(std::string_view("\0\xFF", 2)), "\uFFFD\uFFFD");
  EXPECT_EQ(html_attribute(std::string(1000, 'x')).size(), 1000u);
}

TEST(Html, Numbers) {
  EXPECT_EQ(exact_number(0.1), "0.1");
  EXPECT_EQ(exact_number(kInfinity), "inf");
  EXPECT_EQ(exact_number(-kInfinity), "-inf");
  EXPECT_EQ(exact_number(-std::numeric_limits<double>::quiet_NaN()), "nan");
  for (const double value : {1.0 / 3, 1e300, 5e-324, 123456789.125}) {
    EXPECT_EQ(std::strtod(exact_number(value).c_str(), nullptr), value);
  }
  EXPECT_EQ(number_list(std::vector<double>{0.25, 0, -0.5, 1.5, kInfinity}), ".25 0 -0.5 1.5 inf");
}

TEST(Chart, Coordinates) {
  EXPECT_EQ(coordinate(12), "12");
  EXPECT_EQ(coordinate(12.34), "12.3");
  EXPECT_EQ(coordinate(-0.5), "-.5");
  EXPECT_EQ(coordinate(-0.04), "0");
}

TEST(Chart, Axes) {
  Extent extent;
  extent.add(std::vector<double>{38.2, 44.9, kInfinity, std::nan("")});
  const Axis axis = extent.linear(5);
  EXPECT_LE(axis.first, 38.2);
  EXPECT_GE(axis.last, 44.9);
  EXPECT_EQ(axis.place(kInfinity), 1);
  EXPECT_EQ(axis.place(std::nan("")), 0);
  EXPECT_GE(axis.ticks.size(), 3u);
  // 0.8 dB are no drama: an axis of decibels is 10 dB high.
  Extent near;
  near.add(std::vector<double>{41.2, 42.0});
  EXPECT_LT(near.linear(5).last - near.linear(5).first, 2);
  EXPECT_GE(near.decibels(5).last - near.decibels(5).first, 10);
  EXPECT_NEAR(near.decibels(5).place(41.6), 0.5, 0.1);
  extent.add(0);
  EXPECT_EQ(extent.decibels(5).first, extent.linear(5).first);
  EXPECT_EQ(extent.decibels(5).last, extent.linear(5).last);
  // One value, none at all, and spans at the ends of the numbers still have an axis.
  for (const std::vector<double>& values :
       std::vector<std::vector<double>>{{}, {0}, {5}, {-1e308, 1e308}, {5e-324}, {1e300, 1e300}}) {
    Extent odd;
    odd.add(values);
    for (const Axis& a : {odd.linear(4), odd.logarithmic(4), odd.either(4)}) {
      EXPECT_LT(a.ticks.size(), 60u);
      EXPECT_FALSE(std::isnan(a.place(0.5)));
    }
  }
}

TEST(Png, IsOne) {
  const std::vector<std::uint8_t> levels = {0, 32, 64, 96, 128, 255};
  const std::string png = grey_png(3, 2, levels);
  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_EQ(png.substr(12, 4), "IHDR");
  EXPECT_EQ(png.substr(37, 4), "IDAT");
  // Made by zlib and binascii of Python.
  EXPECT_EQ(base64(png),
            "iVBORw0KGgoAAAANSUhEUgAAAAMAAAACCAAAAAC4HznGAAAAE0lEQVR4AQEIAPf/AAAgQABggP8FJwJAUYsy+AAAAABJRU5ErkJggg==");
  for (std::size_t y = 0; y < 2; ++y)
    for (std::size_t x = 0; x < 3; ++x) EXPECT_EQ(static_cast<std::uint8_t>(png[49 + y * 4 + x]), levels[y * 3 + x]);
}

TEST(Png, Base64) {
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
}

TEST(ReportPage, NamesAreText) {
  const std::string hostile = "<script>alert(1)</script>&\"'";
  Comparison c = comparison({layer(hostile, 20, LayerKind::q), layer("plain", 30)});
  c.original = "/models/" + hostile;
  c.model_type = hostile;
  c.quantized[0].label = hostile;
  c.quantized[0].unquantized = {hostile};
  c.details.push_back({hostile, {detail()}});
  for (const bool twice : {false, true}) {
    if (twice) {
      c.quantized.push_back(c.quantized[0]);
      c.details[0].quantized.push_back(detail());
    }
    const std::string page = report_page(c, {"kvant " + hostile, {hostile}});
    EXPECT_EQ(count_of(page, "<script"), 1u);
    EXPECT_EQ(count_of(page, "</script"), 1u);
    EXPECT_EQ(count_of(page, "alert(1)"), count_of(page, "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;"));
    EXPECT_TRUE(contains(page, "data-module=\"&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;\""));
    expect_balanced(page);
  }
}

TEST(ReportPage, NeedsNothingFromOutside) {
  Comparison c = comparison({layer("a.0.q_proj", 20, LayerKind::q)});
  c.details.push_back({"a.0.q_proj", {detail()}});
  std::string page = report_page(c, {"kvant compare", {}});
  EXPECT_TRUE(contains(page, "default-src 'none'"));
  EXPECT_EQ(count_of(page, "http"), count_of(page, "http-equiv"));
  EXPECT_EQ(count_of(page, "//"), count_of(page, "// "));  // comments of the script
  EXPECT_FALSE(contains(page, "@import"));
  EXPECT_EQ(count_of(page, "url("), count_of(page, "url(#heat)"));
  EXPECT_TRUE(contains(page, "Warnings: none."));
}

TEST(ReportPage, NumbersAreExact) {
  LayerLoss loss = layer("model.layers.3.mlp.down_proj", 38.123456789012345, LayerKind::down);
  loss.block = 3;
  loss.outlier_channels = 7;
  loss.output_sqnr_db = 33.333333333333336;
  Comparison c = comparison({loss});
  c.details.push_back({loss.module, {detail()}});
  const std::string page = report_page(c, {});
  const std::string_view row = between(page, "<tr id=r0 ", "</table>");
  for (const double value :
       {loss.sqnr_db, loss.mse, loss.cosine, loss.largest_error, loss.at_ends, 7.0, *loss.output_sqnr_db})
    EXPECT_EQ(count_of(row, fmt::format(" data-v={}", value)), 1u) << value;
  EXPECT_TRUE(
      contains(between(page, "<tr data-fact=mean_sqnr_db", "<tr "), fmt::format(" data-v={}>38.12 dB", loss.sqnr_db)));
  EXPECT_TRUE(contains(between(page, "<tr data-fact=worst_sqnr_db", "<tr "), "href=#d0"));
  EXPECT_TRUE(contains(between(page, "<tr data-fact=mean_output_sqnr_db", "<tr "), "data-v=33.333333333333336"));
  EXPECT_TRUE(contains(page, fmt::format("data-before=\"{}\"", number_list(c.details[0].quantized[0]->inputs.before))));
  // A decade at least, from 0.08: 1 + 254 log10(10 rms / 0.8).
  EXPECT_TRUE(contains(page, "data-rows=2 data-columns=3 data-least=0.08 data-largest=0.8"));
  const std::vector<std::uint8_t> levels = {0, 26, 102, 147, 179, 255};
  EXPECT_TRUE(contains(page, base64(grey_png(3, 2, levels))));
}

TEST(ReportPage, WithoutLayers) {
  for (const Comparison& c : {Comparison{}, comparison({})}) {
    const std::string page = report_page(c, {});
    EXPECT_TRUE(contains(page, "No layer is quantized"));
    EXPECT_TRUE(contains(page, "0 of 0 layers"));
    EXPECT_FALSE(contains(page, "svg class=depth"));
    expect_balanced(page);
  }
}

TEST(ReportPage, OneWeight) {
  LayerLoss loss = layer("one", kInfinity);
  loss.rows = loss.columns = 1;
  Comparison c = comparison({loss});
  LayerDetail d = detail(1);
  d.channels.sqnr_db = {kInfinity};
  d.strip.rows = d.strip.columns = 1;
  d.strip.rms = {0};
  c.details.push_back({"one", {d}});
  const std::string page = report_page(c, {});
  EXPECT_TRUE(contains(page, "lost nothing"));
  EXPECT_TRUE(contains(page, "data-v=inf"));
  EXPECT_TRUE(contains(page, "data-sqnr_db=\"inf\""));
  EXPECT_TRUE(contains(page, base64(grey_png(1, 1, std::vector<std::uint8_t>{0}))));
  expect_balanced(page);
  for (const char* part : {"=\"nan", " nan", "-nan", "inf,"}) EXPECT_EQ(count_of(markup(page), part), 0u) << part;
}

TEST(ReportPage, NotANumber) {
  Comparison c = comparison({layer("broken", std::nan("")), layer("a.1.k_proj", 12, LayerKind::k)});
  c.details.push_back({"broken", {LayerDetail{}}});
  const std::string page = report_page(c, {});
  EXPECT_TRUE(contains(page, "data-v=nan"));
  EXPECT_TRUE(contains(between(page, "<svg class=depth", "</svg>"), ">NaN</text>"));
  expect_balanced(page);
}

TEST(ReportPage, CheckpointsSideBySide) {
  Comparison c = comparison({layer("a", 20), layer("b", 30)});
  ModelLoss other = c.quantized[0];
  other.label = "small-w4a16";
  other.layers = {layer("b", 10), layer("c", 25)};
  c.quantized.push_back(other);
  c.details.push_back({"b", {detail(), detail(3, false)}});
  c.details.push_back({"a", {detail(), std::nullopt}});
  const std::string page = report_page(c, {});
  // By the worst of the checkpoints: b, a, c.
  EXPECT_TRUE(contains(between(page, "<tr id=r0 ", "<td"), ">b</a>"));
  EXPECT_TRUE(contains(between(page, "<tr id=r1 ", "<td"), ">a</a>"));
  EXPECT_TRUE(contains(between(page, "<tr id=r2 ", "<td"), ">c"));
  EXPECT_EQ(count_of(page, "<svg class=depth"), 2u);
  EXPECT_EQ(count_of(page, "<div class=\"layer s-"), 3u);
  EXPECT_EQ(count_of(page, "<svg class=inputs"), 2u);
  EXPECT_EQ(count_of(between(page, "<tr data-fact=scheme", "<tr "), "<td"), 2u);
  EXPECT_EQ(count_of(between(page, "<tr data-fact=bytes>", "<tr "), "colspan=2"), 1u);
  EXPECT_TRUE(contains(page, "select id=metric"));
  expect_balanced(page);
}

// The sentence at the top of a page of these checkpoints: labels and layers.
std::string finding(const std::vector<std::pair<std::string, std::vector<LayerLoss>>>& models) {
  Comparison comparison;
  comparison.original = "Llama";
  for (const auto& [label, layers] : models) {
    ModelLoss& model = comparison.quantized.emplace_back();
    model.label = label;
    model.layers = layers;
  }
  return std::string(between(report_page(comparison, {}), "<h1>", "</h1>"));
}

TEST(ReportPage, NamesTheCheckpointThatLostLeast) {
  const auto worst_first = [](double a, double b) { return std::vector{layer("a", a), layer("b", b)}; };
  EXPECT_TRUE(contains(finding({{"one", worst_first(20, 30)}, {"two", worst_first(25, 31)}}), "<b>two</b> lost least"));
  // Exact is better than any number, NaN worse; neither is in a mean.
  EXPECT_TRUE(contains(finding({{"exact", worst_first(50, kInfinity)}, {"high", worst_first(23, 150)}}),
                       "<b>exact</b> lost least"));
  EXPECT_TRUE(contains(finding({{"all", worst_first(kInfinity, kInfinity)}, {"high", worst_first(23, 150)}}),
                       "<b>all</b> lost nothing"));
  EXPECT_TRUE(
      contains(finding({{"nan", worst_first(NAN, 60)}, {"low", worst_first(20, 30)}}), "<b>low</b> lost least"));
  // Only layers that both quantized count.
  EXPECT_TRUE(
      contains(finding({{"fewer", {layer("b", 40)}}, {"more", worst_first(10, 41)}}), "<b>more</b> lost least"));
  EXPECT_FALSE(contains(finding({{"one", worst_first(20, 30)}, {"two", worst_first(20, 30)}}), "lost least"));
  // The weights of a smoothed one say nothing beside a plain one's, its outputs do.
  std::vector<LayerLoss> plain = worst_first(42, 43), smooth = worst_first(29, 30);
  for (LayerLoss& one : smooth) one.smoothed = true;
  EXPECT_FALSE(contains(finding({{"plain", plain}, {"smooth", smooth}}), "lost least"));
  for (LayerLoss& one : plain) one.output_sqnr_db = 28;
  for (LayerLoss& one : smooth) one.output_sqnr_db = 33;
  EXPECT_TRUE(contains(finding({{"plain", plain}, {"smooth", smooth}}), "<b>smooth</b> lost least: its outputs"));
  // Nearly the same is the same.
  EXPECT_TRUE(
      contains(finding({{"one", worst_first(40, 40)}, {"two", worst_first(40, 40.1)}, {"low", worst_first(20, 20)}}),
               "<b>one</b> and <b>two</b> lost least: their weights have 40.00 dB and 40.05 dB on average, "
               "against 20.00 dB for low."));
  // Means are of the layers that all of them have.
  EXPECT_TRUE(contains(finding({{"fewer", {layer("b", 40)}}, {"more", worst_first(10, 41)}}),
                       "41.00 dB on average, against 40.00 dB for fewer"));
  // Alone.
  EXPECT_TRUE(contains(finding({{"one", worst_first(kInfinity, kInfinity)}}), "lost nothing"));
  EXPECT_FALSE(contains(finding({{"one", worst_first(NAN, kInfinity)}}), "lost nothing"));
}

TEST(ReportPage, OutputsDecide) {
  Comparison c = comparison({layer("weights", 20), layer("outputs", 30), layer("neither", 40)});
  std::vector<LayerLoss>& layers = c.quantized[0].layers;
  c.details.push_back({"outputs", {detail()}});
  const auto first_row = [&] { return std::string(between(report_page(c, {}), "<tr id=r0 ", "<td")); };
  EXPECT_TRUE(contains(first_row(), "weights"));
  EXPECT_TRUE(contains(report_page(c, {}), "Weights alone are judged"));
  EXPECT_FALSE(contains(report_page(c, {}), "data-key=estimated_output_sqnr_db"));
  for (LayerLoss& one : layers) one.estimated_output_sqnr_db = one.module == "outputs" ? 12.5 : 35;
  const std::string page = report_page(c, {});
  EXPECT_TRUE(contains(first_row(), "outputs"));
  EXPECT_TRUE(
      contains(between(page, "<h1>", "</h1>"), "estimated 27.50 dB on average, the worst 12.50 dB in <b>outputs"));
  EXPECT_TRUE(contains(between(page, "<tr data-fact=worst_estimated_output_sqnr_db", "<tr "), "data-v=12.5"));
  EXPECT_TRUE(contains(between(page, "<summary>", "</summary>"), "12.50 dB"));
  EXPECT_FALSE(contains(page, "Weights alone"));
  // The chart of outputs comes first, and both have the same axis.
  EXPECT_LT(page.find("data-key=estimated_output_sqnr_db"), page.find("data-key=sqnr_db"));
  const std::size_t weights = page.find("<svg class=depth", page.find("<svg class=depth") + 1);
  EXPECT_EQ(between(page.substr(page.find("<svg class=depth")), "<g class=ty>", "</g>"),
            between(page.substr(weights), "<g class=ty>", "</g>"));
  for (LayerLoss& one : layers) one.output_sqnr_db = one.module == "neither" ? 5 : 50;
  EXPECT_TRUE(contains(first_row(), "neither"));
  expect_balanced(page);
}

TEST(ReportPage, NotesOfLayers) {
  Comparison comparison;
  comparison.quantized.resize(2);
  comparison.quantized[0].label = "one";
  comparison.quantized[1].label = "<two>";
  comparison.quantized[0].layers = {layer("a", 20), layer("b", 30)};
  EXPECT_FALSE(contains(report_page(comparison, {}), "<th scope=col data-key=notes"));
  comparison.quantized[0].layers[0].saturated = true;
  comparison.quantized[0].layers[0].non_finite = 7;
  comparison.quantized[0].layers[1].dead_channels = 3;
  comparison.quantized[1].layers = comparison.quantized[0].layers;
  comparison.quantized[1].layers[1].dead_channels = 4;
  for (LayerLoss& one : comparison.quantized[1].layers) one.smoothed = true;
  const std::string page = report_page(comparison, {});
  EXPECT_TRUE(contains(page, "<th scope=col data-key=notes"));
  EXPECT_TRUE(contains(page, "<td class=notes>7 not finite, saturated<"));
  EXPECT_TRUE(contains(page, "<td class=notes>one: 3 dead; &lt;two&gt;: 4 dead<"));
  expect_balanced(page);
  comparison.quantized.erase(comparison.quantized.begin());
  EXPECT_TRUE(contains(report_page(comparison, {}), "<td class=notes>4 dead, smoothed<"));
}

TEST(ReportPage, StacksOfBlocksStandApart) {
  Comparison comparison;
  ModelLoss& model = comparison.quantized.emplace_back();
  for (const char* const stack : {"language.layers.", "vision.layers."})
    for (const std::uint64_t block : {0u, 1u}) {
      LayerLoss& one = model.layers.emplace_back(layer(fmt::format("{}{}.q_proj", stack, block), 40, LayerKind::q));
      one.block = block;
    }
  const std::string page = report_page(comparison, {});
  const std::string_view chart = between(page, "<svg class=depth", "</svg>");
  std::set<std::string> places;
  for (std::size_t at = chart.find("<use"); at != std::string_view::npos; at = chart.find("<use", at + 1))
    places.emplace(between(chart.substr(at), " x=", " y="));
  EXPECT_EQ(places.size(), 4u);
  EXPECT_EQ(count_of(between(chart, "class=trend d=", "/>"), "M"), 2u);
}

TEST(ReportPage, LinesHaveGapsWhereThereIsNoNumber) {
  Comparison comparison;
  ModelLoss& model = comparison.quantized.emplace_back();
  model.layers = {layer("a", 20)};
  LayerDetail one = detail(5);
  one.channels.sqnr_db = {40, 41, kInfinity, NAN, 39};
  comparison.details = {{"a", {one}}};
  const std::string page = report_page(comparison, {});
  const std::string_view chart = between(page, "<svg class=channels", "</svg>");
  EXPECT_EQ(count_of(chart.substr(chart.find("line own")), "M"), 2u);
  EXPECT_TRUE(contains(page, "Gaps: 1 exact. 1 without a number."));
  one.channels.sqnr_db.assign(5, kInfinity);
  comparison.details = {{"a", {one}}};
  EXPECT_TRUE(contains(report_page(comparison, {}), "All are exact."));
  EXPECT_FALSE(contains(between(report_page(comparison, {}), "<svg class=channels", "</svg>"), "line own"));
}

TEST(ReportPage, LongNamesAreCutForPeopleOnly) {
  const std::string name = std::string(5000, 'x');
  Comparison c = comparison({layer(name, 20)});
  c.details.push_back({name, {detail()}});
  const std::string page = report_page(c, {});
  // In the row and in the details.
  EXPECT_EQ(count_of(page, name), 2u);
  EXPECT_EQ(count_of(page, "data-module=\"" + name + "\""), 2u);
}

TEST(ReportPage, StaysSmall) {
  std::vector<LayerLoss> layers;
  constexpr LayerKind kKinds[] = {LayerKind::q, LayerKind::k, LayerKind::v, LayerKind::o, LayerKind::gate};
  for (std::size_t i = 0; i < 500; ++i) {
    LayerLoss loss = layer(fmt::format("model.layers.{}.self_attn.{}_proj", i / 5, name(kKinds[i % 5])),
                           30 + std::sin(static_cast<double>(i)), kKinds[i % 5]);
    loss.block = i / 5;
    loss.mse = 1e-7 * (1.5 + std::sin(static_cast<double>(i)));
    loss.cosine = 1 - loss.mse;
    layers.push_back(loss);
  }
  Comparison c = comparison(layers);
  for (std::size_t i = 0; i < measure::kDetails; ++i) {
    LayerDetail d = detail(measure::kPoints);
    d.strip.rows = measure::kStripRows;
    d.strip.columns = measure::kStripColumns;
    d.strip.rms.assign(d.strip.rows * d.strip.columns, 0.5);
    c.details.push_back({layers[i].module, {d}});
  }
  const std::string page = report_page(c, {});
  EXPECT_EQ(count_of(page, "<use href=\"#m-q\" x="), 100u);
  EXPECT_LT(page.size(), 800'000u);
  expect_balanced(page);
}

}  // namespace
}  // namespace kvant::cli
