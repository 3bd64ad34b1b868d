"""The HTML report and the JSON document beside it: the same numbers, twice computed, and nothing but text from a checkpoint."""

import json
import math
import os
import random
import re
import shutil
import unittest

import jsonschema

import checkpoints as c
import detail_reference
import page
from tool import ToolTest, digest_tree, load_json, run

SOURCES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCHEMA = os.path.join(SOURCES, "docs", "compare.schema.json")
EVAL_SCHEMA = os.path.join(SOURCES, "docs", "eval.schema.json")
METRICS = ("output_sqnr_db", "estimated_output_sqnr_db", "sqnr_db", "mse", "cosine", "largest_error", "at_ends", "outlier_channels",
           "input_ratio")
JUDGED = {"outputs": "output_sqnr_db", "estimated_outputs": "estimated_output_sqnr_db", "weights": "sqnr_db"}
HOSTILE = ("model.layers.0.<script>alert(1)</script>&\"'", "model.layers.0.mlp.</td></table>x --><img src=x onerror=alert(1)>",
           "model.layers.0.http://example.org/up_proj", "model.layers.0.]]>`${alert(1)}`", "model.layers.0.caf\u00e9 \u2603 \U0001f600",
           "model.layers.0." + "n" * 600, "\" onload=\"alert(1)", "&lt;b&gt;&amp;", "javascript:alert(1)", "</script><script>alert(1)</script>",
           "</style><b>", "model.layers.0.x' onmouseover='alert(1)", "=SUM(A1)")


def parse(text):
    """JSON without the NaN and Infinity that Python would take."""
    def refuse(word):
        raise AssertionError(f"{word} in JSON")

    return json.loads(text, parse_constant=refuse)


def number(value):
    """A number of the document, or the word that stands for one."""
    if isinstance(value, str):
        if value not in ("inf", "-inf", "nan"):
            raise AssertionError(f"{value!r} is no number")
        return float(value)
    if isinstance(value, bool) or value is None:
        raise AssertionError(f"{value!r} is no number")
    return float(value)


def judged_by(document):
    """Outputs where most layers of every checkpoint have them, measured before estimated."""
    for word in ("outputs", "estimated_outputs"):
        counts = [(sum(layer[JUDGED[word]] is not None for layer in quantized["layers"]), len(quantized["layers"]))
                  for quantized in document["quantized"] if quantized["layers"]]
        if counts and all(2 * known > layers for known, layers in counts):
            return word
    return "weights"


def rank(layer, key):
    """The least is the worst; what is not known comes last, by its weights."""
    known = layer[key] is not None
    db = number(layer[key] if known else layer["sqnr_db"])
    return (not known, -math.inf if math.isnan(db) else db)


def outputs_of(document):
    """The key of the outputs that the page shows; nothing without any."""
    layers = [layer for quantized in document["quantized"] for layer in quantized["layers"]]
    return next((JUDGED[word] for word in ("outputs", "estimated_outputs") if any(l[JUDGED[word]] is not None for l in layers)), None)


def same(a, b):
    return a == b or math.isnan(a) and math.isnan(b)


def shown(node):
    """The text with the white space of a browser."""
    return re.sub(r"[ \n\t]+", " ", node.text).strip()


def is_name(text, name):
    """Whether a text of the page is a name; one that is very long may be shortened in the middle."""
    text = text.strip()
    if len(name) <= 200 or "\u2026" not in text:
        return text == name
    head, tail = text.split("\u2026", 1)
    return len(head) >= 50 and len(tail) >= 50 and name.startswith(head) and name.endswith(tail)


def value_of(cell):
    """data-v, of the cell or of what is in it; nothing where there is none."""
    found = [node.get("data-v") for node in [cell, *cell.nodes()] if node.has("data-v")]
    if len(found) > 1:
        raise AssertionError(f"{cell!r} has data-v {found}")
    return found[0] if found else None


class ReportTest(ToolTest):
    def checkpoint(self, name="in", **more):
        model = c.llama(**{"layers": 2, **more})
        return model, c.write_folder(self.path(name), model)

    def quantize(self, source, name, *flags):
        out = self.path(name)
        self.assert_done(run("quantize", source, "-o", out, *(flags or ("--scheme", "w8a8"))))
        return out

    def compare(self, *arguments, report="report.html"):
        """(the document, the page), checked against each other."""
        file = self.path(report)
        ran = self.assert_done(run("compare", *arguments, "--report", file, "--json"))
        document = parse(ran.stdout)
        return document, self.check(document, file)

    # ---- What holds for every report ----

    def check(self, document, file):
        self.check_document(document)
        root = page.read(file)
        self.check_head(root)
        self.assertEqual(page.outside_references(root), [])
        rows = self.check_table(document, root)
        self.check_summary(document, root)
        self.check_depth(document, root, rows)
        self.check_details(document, root)
        return root

    def check_schema(self, document, schema):
        problems = jsonschema.Draft202012Validator(load_json(schema)).iter_errors(document)
        self.assertEqual([f"{problem.json_path}: {problem.message}" for problem in problems], [])

    def check_document(self, document):
        self.check_schema(document, SCHEMA)
        self.assertEqual(document["format"], "kvant-compare-1")
        self.assertIn(document["kvant"], self.assert_done(run("--version")).stdout)
        for quantized in document["quantized"]:
            order = [(number(layer["sqnr_db"]), layer["module"]) for layer in quantized["layers"]]
            self.assertEqual(order, sorted(order))
            finite = [db for db, _ in order if math.isfinite(db)]
            mean = math.fsum(finite) / len(finite) if finite else 0.0
            self.assertTrue(math.isclose(number(quantized["mean_sqnr_db"]), mean, rel_tol=1e-9), (quantized["mean_sqnr_db"], mean))
        modules = {layer["module"] for quantized in document["quantized"] for layer in quantized["layers"]}
        wanted = max(8, 32 // len(document["quantized"]))
        self.assertGreaterEqual(len(document["details"]), min(wanted, len(modules)))
        self.assertLessEqual(len(document["details"]), 32)
        self.assertEqual(document["judged_by"], judged_by(document))
        worst = self.worst(document)
        order = [worst[detail["module"]] for detail in document["details"]]
        self.assertEqual(order, sorted(order))
        if modules:
            self.assertEqual(worst[document["details"][0]["module"]], min(worst.values()))

    def worst(self, document):
        """The rank of each module in its worst checkpoint."""
        worst = {}
        for quantized in document["quantized"]:
            for layer in quantized["layers"]:
                of_layer = rank(layer, JUDGED[document["judged_by"]])
                worst[layer["module"]] = min(worst.get(layer["module"], of_layer), of_layer)
        return worst

    def check_head(self, root, has_script=True):
        self.assertEqual(root.one("html").get("lang"), "en")
        metas = root.find("meta")
        self.assertTrue([m for m in metas if m.get("charset", "").lower() == "utf-8"])
        viewport = [m.get("content") for m in metas if m.get("name") == "viewport"]
        self.assertEqual(len(viewport), 1)
        self.assertIn("width=device-width", viewport[0])
        scheme = [m.get("content") for m in metas if m.get("name") == "color-scheme"]
        styles = "".join(node.text for node in root.find("style"))
        self.assertTrue(scheme == ["light dark"] or re.search(r"color-scheme:\s*light dark", styles), scheme)
        policy = [m.get("content") for m in metas if m.get("http-equiv", "").lower() == "content-security-policy"]
        self.assertEqual(len(policy), 1)
        rules = {rule.split()[0]: sorted(rule.split()[1:]) for rule in policy[0].split(";") if rule.strip()}
        wanted = {"default-src": ["'none'"], "style-src": ["'unsafe-inline'"]}
        if has_script:
            wanted.update({"script-src": ["'unsafe-inline'"], "img-src": ["data:"]})
        for name, values in wanted.items():
            self.assertEqual(rules.pop(name), values)
        self.assertEqual([values for values in rules.values() if values != ["'none'"]], [])
        titles = [node for node in root.find("title") if node.parent.tag == "html"]  # drawings have theirs
        self.assertEqual(len(titles), 1)
        self.assertTrue(shown(titles[0]))
        self.assertEqual(len({n.get("id") for n in root.nodes() if n.has("id")}), len([n for n in root.nodes() if n.has("id")]))
        for link in root.find("a[href]"):
            self.assertEqual(len([n for n in root.nodes() if n.get("id") == link.get("href")[1:]]), 1, link)

    def check_table(self, document, root):
        """Returns the modules in the order of the rows."""
        table = root.one("section#layers table#table")
        columns = [(head.get("data-key"), int(head.get("data-q") or 0)) for head in table.find("thead th[data-key]")]
        layers = [{layer["module"]: layer for layer in quantized["layers"]} for quantized in document["quantized"]]
        keys = {key for key, _ in columns}
        known = {"module", "kind", "shape", "sqnr_db", "mse", "cosine", "largest_error", "at_ends", "outlier_channels"}
        layer_list = [layer for by_name in layers for layer in by_name.values()]
        if any(layer["non_finite"] or layer["dead_channels"] or layer["saturated"] or (layer["smoothed"] and len(layers) == 1)
               for layer in layer_list):
            known.add("notes")
        known |= {key for key in ("input_ratio", "output_sqnr_db", "estimated_output_sqnr_db")
                  if any(layer[key] is not None for by_name in layers for layer in by_name.values())}
        self.assertEqual(keys, known)
        judged = JUDGED[document["judged_by"]]
        self.assertEqual([key for key, _ in columns if key in METRICS][0], judged)
        sorted_by = [head.get("data-key") for head in table.find("thead th[aria-sort]")]
        self.assertEqual(sorted_by, [judged] if len(layers) == 1 else [])
        for key in keys & set(METRICS):
            self.assertEqual(sorted(q for k, q in columns if k == key), list(range(len(layers))), key)
        for head in table.find("thead th[data-key]"):
            self.assertEqual(len(head.find("button")), 1, head)
        modules, compared = [], 0
        for i, row in enumerate(table.find("tbody tr")):
            self.assertEqual(row.get("data-i"), str(i))
            cells = [node for node in row.children if isinstance(node, page.Node)]
            self.assertEqual(len(cells), len(columns), row)
            head = row.one("th[scope=row]")
            self.assertIs(head, cells[0])
            module = next((m for by_name in layers for m in by_name if is_name(head.text, m)), None)
            self.assertIsNotNone(module, f"{head.text[:300]!r} is no layer")
            modules.append(module)
            any_layer = next(by_name[module] for by_name in layers if module in by_name)
            self.assertEqual(row.get("data-kind"), any_layer["kind"])
            details = [n for n, detail in enumerate(document["details"]) if detail["module"] == module]
            self.assertEqual([link.get("href") for link in head.find("a")], [f"#d{n}" for n in details])
            for cell, (key, q) in zip(cells, columns):
                if key == "kind":
                    self.assertEqual(shown(cell), any_layer["kind"])
                elif key == "shape":
                    self.assertEqual(re.findall(r"\d+", shown(cell).replace(",", "")),
                                     [str(any_layer["rows"]), str(any_layer["columns"])])
                elif key in METRICS:
                    value = layers[q].get(module, {}).get(key)
                    if value is None:
                        self.assertIsNone(value_of(cell), (module, key))
                        self.assertEqual(shown(cell), "\u2013")
                        continue
                    self.assertTrue(same(float(value_of(cell)), number(value)), f"{module} {key}: {value_of(cell)}, JSON {value}")
                    self.assertTrue(shown(cell))
                    compared += 1
                    for node in [cell, *cell.nodes()]:
                        for bar in re.findall(r"--b:\s*([^;]+)", node.get("style", "")):
                            self.assertTrue(0 <= float(bar.strip().rstrip("%")) <= 100, (module, key, bar))
        self.assertEqual(sorted(modules), sorted({module for by_name in layers for module in by_name}))
        worst = self.worst(document)
        self.assertEqual([worst[m] for m in modules], sorted(worst.values()))
        self.assertEqual(compared, sum(layer[key] is not None for by_name in layers for layer in by_name.values() for key in METRICS))
        self.assertEqual(len(root.find("section#layers input#search[type=search]")), 1)
        self.assertEqual(len(root.find("#shown")), 1)
        self.assertEqual(len(root.find("select#metric")), 1 if len(layers) > 1 else 0)
        if len(layers) > 1:
            self.assertEqual(root.find("select#metric option")[0].get("value"), judged)
        return modules

    def check_summary(self, document, root):
        summary = root.one("section#summary")
        facts = {row.get("data-fact"): row.find("td") for row in summary.one("table.facts").find("tr[data-fact]")}
        count = len(document["quantized"])

        def values(fact, wanted):
            self.assertEqual(len(facts[fact]), len(wanted), fact)
            for cell, value in zip(facts[fact], wanted):
                self.assertTrue(same(float(value_of(cell)), number(value)), f"{fact}: {value_of(cell)}, JSON {value}")
                self.assertTrue(shown(cell))

        def of_all(fact):
            self.assertEqual(len(facts[fact]), 1, fact)
            if count > 1:
                self.assertEqual(facts[fact][0].get("colspan"), str(count), fact)
            return facts[fact][0]

        original = document["original"]
        self.assertIn(original["model_type"] or os.path.basename(original["path"]), of_all("model").text)
        values("parameters", [original["parameters"]])
        values("bytes", [original["bytes"]])
        for fact, key in (("label", "label"), ("scheme", "scheme")):
            self.assertEqual([shown(cell) for cell in facts[fact]], [quantized[key] for quantized in document["quantized"]])
        values("bytes_quantized", [quantized["bytes"] for quantized in document["quantized"]])
        values("layers", [len(quantized["layers"]) for quantized in document["quantized"]])
        values("smoothed", [sum(layer["smoothed"] for layer in quantized["layers"]) for quantized in document["quantized"]])
        if all(quantized["layers"] for quantized in document["quantized"]):
            values("mean_sqnr_db", [quantized["mean_sqnr_db"] for quantized in document["quantized"]])
            for key in filter(None, ("sqnr_db", outputs_of(document))):
                for cell, quantized in zip(facts["worst_" + key], document["quantized"]):
                    worst = min(quantized["layers"], key=lambda layer: (rank(layer, key), layer["module"]))
                    if worst[key] is None:
                        self.assertEqual(shown(cell), "\u2013")
                        continue
                    self.assertTrue(same(float(value_of(cell)), number(worst[key])), f"{key}: {value_of(cell)}, JSON {worst[key]}")
                    self.assert_linked(root, cell.one("a[href]"), worst["module"])
        for key in ("output_sqnr_db", "estimated_output_sqnr_db"):
            self.assertEqual("mean_" + key in facts, outputs_of(document) == key)
            self.assertEqual("worst_" + key in facts, outputs_of(document) == key)
            if outputs_of(document) != key:
                continue
            for cell, quantized in zip(facts["mean_" + key], document["quantized"]):
                known = [layer[key] for layer in quantized["layers"] if layer[key] is not None]
                if quantized["mean_" + key] is None:
                    self.assertEqual(shown(cell), "\u2013")
                    continue
                self.assertEqual(float(value_of(cell)), quantized["mean_" + key])
                if all(math.isfinite(number(x)) for x in known):
                    self.assertTrue(math.isclose(float(value_of(cell)), math.fsum(known) / len(known), rel_tol=1e-9))
        if any(quantized["layers"] for quantized in document["quantized"]):
            said = shown(summary.one("#judged"))
            self.assertEqual("Weights alone are judged" in said, document["judged_by"] == "weights", said)
            self.assertEqual("estimated" in said, document["judged_by"] == "estimated_outputs", said)
            # Every scheme has a range that is usual, and a band in the charts of weights.
            bands = root.find("#depth svg.depth[data-key=sqnr_db] rect.usual")
            self.assertEqual(len(bands), count)
            self.assertEqual(len(root.find("#depth rect.usual")), count)
            for cell in facts["usual_sqnr_db"]:
                self.assertLess(float(cell.get("data-least")), float(cell.get("data-most")))
        self.assertEqual(of_all("command").text.strip(), document["command"])
        self.assertIn(document["kvant"], of_all("version").text)
        values("seconds", [document["seconds"]])
        said = document["warnings"] + [w for quantized in document["quantized"] for w in quantized["warnings"]]
        items = [item.text for item in summary.find("ul#warnings li")]
        for warning in said:
            self.assertTrue([item for item in items if warning in item], f"{warning!r} is not in {items}")
        if said:
            self.assertEqual(len(items), len(said))
        else:
            self.assertRegex(summary.text.lower(), r"\bnone\b|no warnings")

    def assert_linked(self, root, link, module):
        """To the details of this layer, or to its row."""
        (place,) = [node for node in root.nodes() if node.get("id") == link.get("href")[1:]]
        names = [place.get("data-module", ""), *(head.text for head in place.find("th[scope=row]"))]
        self.assertTrue([text for text in names if is_name(text, module)], names)

    def check_depth(self, document, root, modules):
        charts = root.find("section#depth svg.depth")
        count = len(document["quantized"])
        keys = [key for key in (outputs_of(document), "sqnr_db") if key]
        if document["judged_by"] == "weights":
            keys.reverse()
        self.assertEqual([(chart.get("data-key"), chart.get("data-q")) for chart in charts],
                         [(key, str(q)) for key in keys for q in range(count)])
        kinds_used = {}
        for chart, quantized in zip(charts, document["quantized"] * len(keys)):
            layers = {layer["module"]: layer for layer in quantized["layers"]}
            points = chart.find("use[data-i]")
            drawn = [modules[int(point.get("data-i"))] for point in points]
            self.assertEqual(len(set(drawn)), len(drawn))
            self.assertEqual(set(drawn), {m for m, layer in layers.items() if layer[chart.get("data-key")] is not None})
            for point, module in zip(points, drawn):
                kinds_used.setdefault(layers[module]["kind"], set()).add(point.get("href") or point.get("xlink:href"))
        for kind, shapes in kinds_used.items():
            self.assertEqual(len(shapes), 1, f"{kind}: {shapes}")
        self.assertEqual(len({next(iter(shapes)) for shapes in kinds_used.values()}), len(kinds_used), kinds_used)
        kinds = {layer["kind"] for quantized in document["quantized"] for layer in quantized["layers"]}
        buttons = root.find("#kinds button[data-kind]")
        self.assertEqual({button.get("data-kind") for button in buttons}, kinds)
        self.assertEqual({button.get("aria-pressed") for button in buttons}, {"true"} if kinds else set())
        self.assertTrue(root.find(".readout[aria-live]"))

    def check_details(self, document, root):
        folds = root.one("section#worst").find("details[data-module]")
        self.assertEqual([fold.get("id") for fold in folds], [f"d{n}" for n in range(len(document["details"]))])
        for n, (fold, detail) in enumerate(zip(folds, document["details"])):
            self.assertEqual(fold.get("data-module"), detail["module"])
            if len(detail["module"]) <= 200:
                self.assertIn(detail["module"], fold.one("summary").text)
            self.assertEqual(fold.has("open"), n == 0)
            drawn = {int(layer.get("data-q")): layer for layer in fold.find("div.layer[data-q]")}
            self.assertEqual(sorted(drawn), [q for q, one in enumerate(detail["quantized"]) if one is not None])
            self.check_common(drawn.values())
            for q, layer in drawn.items():
                self.check_layer(detail["quantized"][q], layer, f"{detail['module']} {q}")

    def check_common(self, layers):
        """Charts of a layer have the same axes in all checkpoints, but for the codes."""
        for chart in ("histogram", "channels", "inputs", "smoothing"):
            ticks = {tuple((text.get("y"), text.text) for labels in svg.find("g.ty") for text in labels.find("text"))
                     for layer in layers for svg in layer.find("svg." + chart)}
            self.assertLessEqual(len(ticks), 1, chart)
        scales = {(figure.get("data-least"), figure.get("data-largest")) for layer in layers for figure in layer.find("figure.strip")}
        self.assertLessEqual(len(scales), 1)

    def check_layer(self, detail, layer, about):
        def listed(node, name, wanted):
            got = page.numbers(node.get(name))
            self.assertEqual(len(got), len(wanted), f"{about} {name}")
            for a, b in zip(got, wanted):
                self.assertTrue(same(a, number(b)), f"{about} {name}: {a}, JSON {b}")

        listed(layer.one("svg.histogram"), "data-counts", detail["histogram"]["counts"])
        channels = layer.one("svg.channels")
        for name in ("least", "largest", "sqnr_db"):
            listed(channels, "data-" + name, detail["channels"][name])
        self.check_strip(detail["strip"], layer.one("figure.strip"), about)
        inputs = detail["inputs"]
        self.assertEqual(len(layer.find("svg.inputs")), 1 if inputs and inputs["before"] else 0, about)
        self.assertEqual(len(layer.find("svg.smoothing")), 1 if inputs and inputs["smoothing_least"] else 0, about)
        if inputs and inputs["before"]:
            listed(layer.one("svg.inputs"), "data-before", inputs["before"])
            if inputs["after"] or layer.one("svg.inputs").has("data-after"):
                listed(layer.one("svg.inputs"), "data-after", inputs["after"])
        if inputs and inputs["smoothing_least"]:
            listed(layer.one("svg.smoothing"), "data-least", inputs["smoothing_least"])
            listed(layer.one("svg.smoothing"), "data-largest", inputs["smoothing_largest"])
        if detail["largest_errors"]:
            self.check_errors(detail["largest_errors"], layer.one("table.errors"), about)
        else:
            self.assertEqual(layer.find("table.errors"), [])

    def check_strip(self, strip, figure, about):
        self.assertEqual((int(figure.get("data-rows")), int(figure.get("data-columns"))), (strip["rows"], strip["columns"]), about)
        rms = [number(x) for x in strip["rms"]]
        self.assertEqual(len(rms), strip["rows"] * strip["columns"], about)
        least, largest = float(figure.get("data-least")), float(figure.get("data-largest"))
        self.assertGreaterEqual(largest, max(rms, default=0.0), about)
        self.assertTrue(largest / 1001 <= least <= largest / 9.99, about)
        (picture,) = [node for node in figure.nodes() if node.tag in ("img", "image")]
        kind, data = page.data_of(picture.get("src") or picture.get("href") or picture.get("xlink:href"))
        self.assertEqual(kind, "image/png")
        if picture.tag == "img":
            self.assertTrue(picture.get("alt"), about)
        width, height, pixels = page.read_png(data)
        self.assertEqual((width, height), (strip["columns"], strip["rows"]), about)
        for place, pixel in enumerate(sum(pixels, [])):
            if rms[place] == 0:
                self.assertEqual(pixel, 0, f"{about}: cell {place}")
                continue
            level = 1 + 254 * min(max(math.log(rms[place] / least) / math.log(largest / least), 0), 1)
            self.assertLessEqual(abs(pixel - level), 0.501, f"{about}: cell {place}")

    def check_errors(self, errors, table, about):
        rows = [row for row in table.find("tr") if row.find("td")]
        self.assertEqual(len(rows), len(errors), about)
        for row, error in zip(rows, errors):
            exact, near = [], []
            for cell in [node for node in row.nodes() if node.tag in ("td", "th")]:
                if value_of(cell) is not None:
                    exact.append(float(value_of(cell)))
                else:
                    near += [float(word) for word in re.findall(r"[-+]?\d+\.?\d*(?:e[-+]?\d+)?", shown(cell).replace("\u2212", "-"))]
            for key in ("row", "column"):
                self.assertIn(error[key], exact + near, f"{about} {key}")
            for key in ("weight", "value", "error"):
                want = number(error[key])
                self.assertTrue(any(same(x, want) for x in exact) or any(math.isclose(x, want, rel_tol=6e-3, abs_tol=1e-12) for x in near),
                                f"{about} {key} {want}: {exact} {near}")
            self.assertEqual(number(error["error"]), number(error["weight"]) - number(error["value"]), about)


class NumbersTest(ReportTest):
    """Reports of many kinds of checkpoints: page and document agree, and the document is right."""

    def assert_near(self, got, want, about):
        """Sums of f64 in another order, then four digits: one unit of the last."""
        got, want = number(got), number(want)
        unit = 10.0 ** (math.floor(math.log10(abs(want))) - 3) if want and math.isfinite(want) else 0
        self.assertTrue(same(got, want) or abs(got - want) <= 1.001 * unit, f"{about}: {got}, want {want}")

    def assert_detail(self, detail, layer, absmax=None, about=""):
        want = detail_reference.detail(layer, absmax)
        self.assertEqual(detail["row_stride"], want["row_stride"], about)
        self.assertIn(detail["histogram"], detail_reference.histograms(layer, want["row_stride"]), about)
        total = sum(detail["histogram"]["counts"]) + detail["histogram"]["below"] + detail["histogram"]["above"]
        self.assertEqual(total, detail["histogram"]["weights"], about)
        self.assertEqual(detail["channels"]["span"], want["channels"]["span"], about)
        for key in ("least", "largest"):
            self.assertEqual([number(x) for x in detail["channels"][key]], want["channels"][key], about)
        self.assertEqual(len(detail["channels"]["sqnr_db"]), len(want["channels"]["sqnr_db"]), about)
        for i, (a, b) in enumerate(zip(detail["channels"]["sqnr_db"], want["channels"]["sqnr_db"])):
            self.assert_near(a, b, f"{about} SQNR of point {i}")
        for key in ("row_span", "column_span", "rows", "columns"):
            self.assertEqual(detail["strip"][key], want["strip"][key], f"{about} {key}")
        self.assertEqual(len(detail["strip"]["rms"]), len(want["strip"]["rms"]), about)
        for i, (a, b) in enumerate(zip(detail["strip"]["rms"], want["strip"]["rms"])):
            self.assert_near(a, b, f"{about} cell {i}")
        self.assertEqual(detail["largest_errors"], want["largest_errors"], about)
        if want["inputs"] is None:
            self.assertIsNone(detail["inputs"], about)
            return
        for key in ("span", "before", "after", "smoothing_least", "smoothing_largest"):
            got = detail["inputs"][key]
            self.assertEqual([number(x) for x in got] if isinstance(got, list) else got, want["inputs"][key], f"{about} {key}")
        for key in ("ratio_before", "ratio_after"):
            if want["inputs"][key] is None:
                self.assertIsNone(detail["inputs"][key], about)
            else:
                self.assert_near(detail["inputs"][key], want["inputs"][key], f"{about} {key}")

    def assert_all_details(self, document, model, folders, stats=None):
        for detail in document["details"]:
            module = detail["module"]
            absmax = stats[module + ".absmax"].values() if stats and module + ".absmax" in stats else None
            for one, folder in zip(detail["quantized"], folders):
                if one is not None:
                    layer = detail_reference.Layer(model.tensors, folder, module)
                    self.assert_detail(one, layer, absmax, f"{module} of {os.path.basename(folder)}")

    def test_w8a8(self):
        model, source = self.checkpoint(layers=3)
        out = self.quantize(source, "w8a8")
        document, root = self.compare(source, out)
        self.assertEqual(len(document["details"]), 21)
        self.assert_all_details(document, model, [out])
        original = document["original"]
        self.assertEqual((original["path"], original["model_type"]), (source, "llama"))
        self.assertEqual(original["parameters"], sum(math.prod(t.shape) for t in model.tensors.values()))
        self.assertEqual(original["bytes"], sum(len(t.data) for t in model.tensors.values()))
        (quantized,) = document["quantized"]
        self.assertEqual((quantized["path"], quantized["label"]), (out, "w8a8"))
        self.assertIn("w8a8", quantized["scheme"])
        self.assertEqual(quantized["bytes"], sum(len(t.data) for t in c.read_folder(out).values()))
        self.assertEqual(quantized["unquantized"], ["lm_head"])
        self.assertEqual(quantized["warnings"], [])
        self.assertTrue(document["command"].startswith("kvant compare "), document["command"])
        for word in (source, out, "--report"):
            self.assertIn(word, document["command"])
        self.assertGreater(document["seconds"], 0)
        kinds = {layer["module"].rsplit(".", 1)[1]: layer["kind"] for layer in quantized["layers"]}
        self.assertEqual(kinds, {f"{k}_proj": k for k in ("q", "k", "v", "o", "gate", "up", "down")})
        for layer in quantized["layers"]:
            self.assertEqual(layer["block"], int(layer["module"].split(".")[2]))
        self.assertEqual([details.has("open") for details in root.find("section#worst details[data-module]")][:2], [True, False])

    def test_every_dtype(self):
        for dtype in ("F32", "F16", "F64"):
            with self.subTest(dtype):
                model, source = self.checkpoint("in" + dtype, layers=1, dtype=dtype)
                out = self.quantize(source, "out" + dtype)
                document, _ = self.compare(source, out)
                self.assert_all_details(document, model, [out])

    def test_w4a16(self):
        model, source = self.checkpoint()
        folders = [self.quantize(source, "w4", "--scheme", "w4a16", "--group-size", "16"),
                   self.quantize(source, "w4-asymmetric", "--scheme", "w4a16", "--group-size", "16", "--asymmetric")]
        for folder in folders:
            document, _ = self.compare(source, folder)
            self.assertIn("w4a16", document["quantized"][0]["scheme"])
            self.assert_all_details(document, model, [folder])

    def test_smoothed_with_statistics(self):
        model, source = self.checkpoint()
        stats = c.make_stats(model)
        c.write_safetensors(self.path("stats"), stats)
        smooth = self.quantize(source, "smooth", "--scheme", "w8a8", "--smooth", "--stats", self.path("stats"))
        document, _ = self.compare(source, smooth, "--stats", self.path("stats"))
        self.assert_all_details(document, model, [smooth], stats)
        inputs = [detail["quantized"][0]["inputs"] for detail in document["details"]]
        self.assertTrue(all(one["before"] for one in inputs))
        self.assertEqual(sum(bool(one["after"]) for one in inputs), 10)  # q, k, v, gate and up of two blocks
        # Without statistics the vectors alone are known.
        document, _ = self.compare(source, smooth)
        self.assert_all_details(document, model, [smooth])
        self.assertEqual(sum(detail["quantized"][0]["inputs"] is not None for detail in document["details"]), 10)
        # Statistics beside a checkpoint that was not smoothed.
        plain = self.quantize(source, "plain")
        document, _ = self.compare(source, plain, "--stats", self.path("stats"))
        self.assert_all_details(document, model, [plain], stats)
        self.assertFalse(any(detail["quantized"][0]["inputs"]["after"] for detail in document["details"]))

    def test_statistics_of_zeros_and_of_some_modules(self):
        model, source = self.checkpoint(layers=1)
        stats = c.make_stats(model, min_max=False)
        names = sorted(stats)
        stats[names[0]] = c.Tensor.of([0.0] * stats[names[0]].shape[0], "F32")
        stats[names[1]] = c.Tensor.of([0.0] * (stats[names[1]].shape[0] - 1) + [2.0], "F32")
        c.write_safetensors(self.path("stats"), stats)
        out = self.quantize(source, "out")
        document, _ = self.compare(source, out, "--stats", self.path("stats"))
        self.assert_all_details(document, model, [out], stats)
        ratios = {d["module"]: d["quantized"][0]["inputs"]["ratio_before"] for d in document["details"]}
        self.assertEqual((ratios[names[0][:-7]], ratios[names[1][:-7]]), (1, "inf"))

    def test_a_layer_of_many_weights(self):
        """Rows are sampled, points are spans, cells are blocks."""
        make = c.Maker("F32", 11)
        make.linear("model.layers.0.mlp.up_proj", 301, 1200)
        model = c.Model(make.tensors, c.config_of("llama", "L", "F32"), make.linears)
        source = c.write_folder(self.path("in"), model)
        stats = c.make_stats(model, min_max=False)
        c.write_safetensors(self.path("stats"), stats)
        folders = [self.quantize(source, "w8a8"), self.quantize(source, "w4a16", "--scheme", "w4a16", "--group-size", "80", "--asymmetric")]
        document, _ = self.compare(source, *folders, "--stats", self.path("stats"))
        for one in document["details"][0]["quantized"]:
            self.assertEqual((one["row_stride"], one["channels"]["span"], one["inputs"]["span"]), (4, 5, 19))
            self.assertEqual((one["strip"]["row_span"], one["strip"]["column_span"]), (16, 32))
        self.assert_all_details(document, model, folders, stats)

    def test_weights_that_are_not_finite_and_dead_rows(self):
        model, source = self.checkpoint(layers=1, dtype="F32")
        for module, row, value in (("model.layers.0.mlp.up_proj", 3, 0.0), ("model.layers.0.mlp.down_proj", 1, math.nan),
                                   ("model.layers.0.self_attn.q_proj", 2, math.inf),
                                   ("model.layers.0.self_attn.k_proj", 0, math.nan)):
            weight = model.tensors[module + ".weight"]
            values = weight.values()
            width = weight.shape[1]
            for j in range(width if value == 0 or module.endswith("k_proj") else 2):
                values[row * width + j] = value
            model.tensors[module + ".weight"] = c.Tensor.of(values, "F32", weight.shape)
        shutil.rmtree(source)
        c.write_folder(source, model)
        out = self.quantize(source, "out")
        document, root = self.compare(source, out)
        layers = {layer["module"]: layer for layer in document["quantized"][0]["layers"]}
        self.assertEqual(layers["model.layers.0.mlp.up_proj"]["dead_channels"], 1)
        self.assertEqual(layers["model.layers.0.mlp.down_proj"]["non_finite"], 2)
        self.assertEqual(layers["model.layers.0.self_attn.q_proj"]["non_finite"], 2)
        self.assertEqual(sum(layer["dead_channels"] for layer in layers.values()), 1)
        self.assertGreaterEqual(len(root.find("ul#warnings li")), 2)
        self.assert_all_details(document, model, [out])
        detail = next(d for d in document["details"] if d["module"] == "model.layers.0.mlp.up_proj")
        self.assertIn("inf", detail["quantized"][0]["channels"]["sqnr_db"])
        detail = next(d for d in document["details"] if d["module"] == "model.layers.0.self_attn.k_proj")
        self.assertEqual(detail["quantized"][0]["channels"]["sqnr_db"][0], "nan")

    def test_layers_that_lost_nothing(self):
        make = c.Maker("F32", 1)
        exact, zeros = "model.layers.0.mlp.up_proj", "model.layers.0.mlp.gate_proj"
        make.tensors[exact + ".weight"] = c.Tensor.of([127.0, -3.0, 0.0, 4.0] * 4, "F32", [4, 4])
        make.tensors[zeros + ".weight"] = c.Tensor.of([0.0] * 16, "F32", [4, 4])
        make.linear("model.layers.0.mlp.down_proj", 8, 8)
        model = c.Model(make.tensors, c.config_of("llama", "L", "F32"), make.linears + [exact, zeros])
        source = c.write_folder(self.path("in"), model)
        out = self.quantize(source, "out")
        document, _ = self.compare(source, out)
        self.assertEqual([layer["sqnr_db"] for layer in document["quantized"][0]["layers"]][1:], ["inf", "inf"])
        self.assert_all_details(document, model, [out])

    def test_nothing_quantized(self):
        _, source = self.checkpoint(layers=1)
        ran = run("quantize", source, "-o", self.path("out"), "--scheme", "w8a8", "--ignore", "re:.*")
        if ran.returncode:
            self.skipTest("a checkpoint without quantized layers is refused by quantize")
        ran = run("compare", source, self.path("out"), "--report", self.path("report.html"), "--json")
        if ran.returncode == 0:
            self.check(parse(ran.stdout), self.path("report.html"))
        else:
            self.assert_refused(ran)
            self.assertFalse(os.path.exists(self.path("report.html")))

    def test_one_file_without_config(self):
        model = c.llama(layers=1)
        c.write_safetensors(self.path("one.safetensors"), model.tensors)
        self.assert_done(run("quantize", self.path("one.safetensors"), "-o", self.path("out.safetensors"), "--scheme", "w8a8"))
        document, _ = self.compare(self.path("one.safetensors"), self.path("out.safetensors"))
        self.assertIsNone(document["original"]["model_type"])

    def test_any_number_of_threads(self):
        _, source = self.checkpoint()
        out = self.quantize(source, "out", "--scheme", "w4a16", "--group-size", "16")
        seen = []
        for threads in ("1", "2", "3"):
            document, _ = self.compare(source, out, "--threads", threads)
            seen.append({key: value for key, value in document.items() if key not in ("command", "seconds")})
        self.assertEqual(seen[0], seen[1])
        self.assertEqual(seen[0], seen[2])
        alone = parse(self.assert_done(run("compare", source, out, "--json")).stdout)
        self.check_document(alone)
        self.assertEqual({key: value for key, value in alone.items() if key not in ("command", "seconds")}, seen[0])

    def test_many_layers(self):
        model, source = self.checkpoint(dtype="F32", hidden=16, intermediate=32, layers=72)
        out = self.quantize(source, "out")
        document, _ = self.compare(source, out)
        self.assertEqual((len(document["quantized"][0]["layers"]), len(document["details"])), (504, 32))
        size = os.path.getsize(self.path("report.html"))
        print(f"504 layers: a report of {size / 1000:.0f} kB")
        self.assertLess(size, 1_000_000)
        self.assert_all_details({"details": document["details"][:3]}, model, [out])


class SideBySideTest(ReportTest):
    def test_two_and_three(self):
        model, source = self.checkpoint()
        one = "model.layers.1.mlp.down_proj"
        folders = [self.quantize(source, "w8a8"),
                   self.quantize(source, "w4a16", "--scheme", "w4a16", "--group-size", "16", "--ignore", one),
                   self.quantize(source, "static")]
        for count in (2, 3):
            with self.subTest(count):
                document, root = self.compare(source, *folders[:count])
                self.assertEqual([q["path"] for q in document["quantized"]], folders[:count])
                self.assertEqual([q["label"] for q in document["quantized"]], ["w8a8", "w4a16", "static"][:count])
                self.assertEqual([len(q["layers"]) for q in document["quantized"]], [14, 13, 14][:count])
                detail = [d for d in document["details"] if d["module"] == one]
                if count == 2:
                    self.assertEqual(len(document["details"]), 14)
                    self.assertEqual([x is None for x in detail[0]["quantized"]], [False, True])
                charts = root.find("section#depth svg.depth")
                self.assertEqual(len({chart.get("viewbox") for chart in charts}), 1)
                self.assertEqual(len({tuple((text.get("y"), text.text) for text in chart.find("g.ty text")) for chart in charts}), 1)
                self.assert_colours(root, count)

    def assert_colours(self, root, count):
        """A checkpoint has one colour, wherever its name or its numbers stand."""
        def colours(css):
            return [patch.get("class").split()[1] for patch in root.find(css)]

        own = [f"s-{q}" for q in range(count)]
        self.assertEqual(colours("tr[data-fact=label] i.patch"), own)
        self.assertEqual(colours("#depth figcaption i.patch"), own)
        self.assertEqual(colours("#table th[data-key=sqnr_db] i.patch"), own)
        for layer in root.find("#worst div.layer"):
            self.assertEqual(layer.get("class").split(), ["layer", own[int(layer.get("data-q"))]])
            self.assertEqual(layer.one("h3 i.patch").get("class").split()[1], own[int(layer.get("data-q"))])

    def test_labels_that_would_be_the_same(self):
        _, source = self.checkpoint(layers=1)
        os.mkdir(self.path("a"))
        os.mkdir(self.path("b"))
        folders = [self.quantize(source, "a/out"), self.quantize(source, "b/out", "--scheme", "w4a16", "--group-size", "16")]
        document, _ = self.compare(source, *folders)
        labels = [q["label"] for q in document["quantized"]]
        self.assertEqual(len(set(labels)), 2, labels)
        for label in labels:
            self.assertIn("out", label)

    def test_labels_of_odd_paths(self):
        _, source = self.checkpoint(layers=1)
        out = self.quantize(source, "out")
        ran = self.assert_done(run("compare", source, ".", "../out", out + "/", "--json", cwd=out))
        self.assertEqual([q["label"] for q in parse(ran.stdout)["quantized"]], ["out", "out (2)", "out (3)"])

    def test_the_second_does_not_belong(self):
        _, source = self.checkpoint(layers=1)
        other = c.write_folder(self.path("other"), c.llama(layers=1, hidden=16))
        folders = [self.quantize(source, "a"), self.quantize(other, "b")]
        self.assert_refused(run("compare", source, *folders, "--report", self.path("r.html")), "_proj")
        self.assertFalse(os.path.exists(self.path("r.html")))


class JudgedTest(ReportTest):
    """Outputs decide what is the worst where they are known; weights where not."""

    WORST = "model.layers.1.self_attn.o_proj"

    def statistics(self, model, modules):
        """Activations that cost much in one layer: its output is the worst, whatever its weights lost."""
        stats = c.make_stats(model, min_max=False)
        for module in modules:
            width = model.shape(module)[1]
            stats[module + ".mean_square"] = c.Tensor.of([1.0] * width, "F32")
            stats[module + ".int8_error"] = c.Tensor.of([0.1 if module == self.WORST else 1e-5] * width, "F32")
        c.write_safetensors(self.path("stats"), stats)

    def test_an_estimate_of_outputs(self):
        model, source = self.checkpoint()
        modules = [module for module in model.linears if module != "lm_head"]
        self.statistics(model, modules)
        out = self.quantize(source, "out")
        document, root = self.compare(source, out, "--stats", self.path("stats"))
        self.assertEqual(document["judged_by"], "estimated_outputs")
        self.assertNotEqual(document["quantized"][0]["layers"][0]["module"], self.WORST)
        self.assertEqual(document["details"][0]["module"], self.WORST)
        self.assertIn(self.WORST, shown(root.one("h1")))
        self.assertIn("its outputs have an estimated", shown(root.one("h1")))
        self.assertEqual(shown(root.one("tr#r0 th[scope=row]")), self.WORST)
        layer = next(layer for layer in document["quantized"][0]["layers"] if layer["module"] == self.WORST)
        self.assertIn(f"{layer['estimated_output_sqnr_db']:.2f} dB", shown(root.one("#d0 summary")))
        # Beside others.
        document, root = self.compare(source, out, self.quantize(source, "w4", "--scheme", "w4a16", "--group-size", "16"),
                                      "--stats", self.path("stats"))
        self.assertEqual(document["judged_by"], "estimated_outputs")
        self.assertRegex(shown(root.one("h1")), r"lost least: its outputs have an estimated \S+ dB on average, against")

    def test_some_layers_without_an_estimate(self):
        model, source = self.checkpoint()
        out = self.quantize(source, "out")
        modules = [module for module in model.linears if module != "lm_head"]
        self.assertEqual(len(modules), 14)
        known = [module for module in modules if module != self.WORST][:8]
        self.statistics(model, known)
        document, root = self.compare(source, out, "--stats", self.path("stats"))
        self.assertEqual(document["judged_by"], "estimated_outputs")
        self.assertIn("6 layers of which they are not known come last", shown(root.one("#judged")))
        # Of half of them only: too few.
        self.statistics(model, known[:7])
        document, root = self.compare(source, out, "--stats", self.path("stats"))
        self.assertEqual(document["judged_by"], "weights")
        self.assertIn("the outputs of too few layers are known", shown(root.one("#judged")))

    def test_weights_alone(self):
        _, source = self.checkpoint(layers=1)
        _, root = self.compare(source, self.quantize(source, "out"))
        self.assertIn("its weights have", shown(root.one("h1")))
        self.assertIn("--stats", shown(root.one("#judged")))

    def test_the_demo_measures_them(self):
        ran = self.assert_done(run("demo", "--output", self.path("demo"), "--json", timeout=120), quotes=True)
        document = parse(ran.stdout)["comparison"]
        self.assertEqual(document["judged_by"], "outputs")
        root = self.check(document, self.path("demo", "report.html"))
        # The winners' weights are not the best of all, and their layers not the worst.
        self.assertRegex(shown(root.one("h1")), r"lost least: (its|their) outputs have")


class UsualTest(ReportTest):
    CODES = {"8 bits, symmetric": ("s8", "false"), "4 bits, symmetric": ("s4", "false"), "4 bits, asymmetric": ("s4", "true"),
             "FP8 (e4m3)": ("e4m3", "false")}

    def test_the_guide_has_the_numbers_of_the_table(self):
        with open(os.path.join(SOURCES, "src", "measure", "usual_sqnr.cc"), encoding="utf-8") as file:
            table = {row[:3]: row[3:] for row in re.findall(r"\{ElementKind::(\w+), (\w+), (\d+), ([\d.]+), ([\d.]+)\}", file.read())}
        with open(os.path.join(SOURCES, "docs", "report.md"), encoding="utf-8") as file:
            told = re.findall(r"\| ([^|]+) \| (\d+) \| ([\d.]+) dB \| ([\d.]+) dB \|", file.read())
        self.assertGreater(len(told), 5)
        for codes, share, least, most in told:
            self.assertEqual(table[(*self.CODES[codes], share)], (least, most), codes)

    def test_of_each_scheme(self):
        """Normal weights lie in the band of their scheme, in groups and in rows."""
        make = c.Maker("F32", 5)
        make.linear("model.layers.0.mlp.up_proj", 64, 512)
        values = make.tensors["model.layers.0.mlp.up_proj.weight"].values()
        random.seed(3)
        make.tensors["model.layers.0.mlp.up_proj.weight"] = c.Tensor.of([c.round_f32(random.gauss(0, 1)) for _ in values], "F32", [64, 512])
        source = c.write_folder(self.path("in"), c.Model(make.tensors, c.config_of("llama", "L", "F32"), make.linears))
        for name, *flags in (("w8a8",), ("w4a16", "--group-size", "32"), ("w4a16", "--group-size", "128", "--asymmetric")):
            with self.subTest(name, flags=flags):
                out = self.quantize(source, "-".join([name, *flags]), "--scheme", name, *flags)
                document, root = self.compare(source, out)
                (cell,) = root.one("tr[data-fact=usual_sqnr_db]").find("td")
                least, most = float(cell.get("data-least")), float(cell.get("data-most"))
                self.assertTrue(least < document["quantized"][0]["mean_sqnr_db"] < most, (least, document["quantized"][0]["mean_sqnr_db"], most))
                self.assertLess(most - least, 8)
                # The band of the chart has its ends on the chart's axis.
                (band,) = root.find("#depth rect.usual")
                labels = [(float(text.get("y")), float(text.text)) for text in root.one("#depth svg.depth").find("g.ty")[0].find("text")]
                (y0, db0), (y1, db1) = labels[0], labels[-1]
                top = float(band.get("y"))
                for y, db in ((top, most), (top + float(band.get("height")), least)):
                    self.assertAlmostEqual(db0 + (y - y0) / (y1 - y0) * (db1 - db0), db, delta=0.1)


class AxisTest(ReportTest):
    def test_a_small_difference_stays_small(self):
        """Axes of decibels are at least 10 dB high."""
        _, source = self.checkpoint()
        _, root = self.compare(source, self.quantize(source, "out"))
        charts = [(svg, svg.find("g.ty")[0]) for svg in root.find("#depth svg.depth")]
        charts += [(svg, svg.find("g.ty")[1]) for svg in root.find("svg.channels")]
        self.assertGreater(len(charts), 5)
        for svg, labels in charts:
            numbers = [float(text.text) for text in labels.find("text") if re.fullmatch(r"-?[\d.]+", text.text)]
            self.assertGreaterEqual(max(numbers) - min(numbers), 10, numbers)


class WarningLinksTest(ReportTest):
    def test_named_layers_are_links(self):
        model, source = self.checkpoint(dtype="F32")
        dead = [module for module in model.linears if module.endswith(("q_proj", "k_proj", "up_proj"))]
        self.assertEqual(len(dead), 6)
        for module in dead:
            weight = model.tensors[module + ".weight"]
            model.tensors[module + ".weight"] = c.Tensor.of([0.0] * weight.shape[1] + weight.values()[weight.shape[1]:], "F32", weight.shape)
        shutil.rmtree(source)
        c.write_folder(source, model)
        document, root = self.compare(source, self.quantize(source, "one"), self.quantize(source, "two"))
        items = root.find("ul#warnings li")
        self.assertEqual(len(items), 2)
        for item, quantized in zip(items, document["quantized"]):
            (sentence,) = quantized["warnings"]
            self.assertIn("and 3 more", sentence)
            links = item.find("a[href]")
            self.assertEqual(len(links), 4)
            for link in links[:3]:
                self.assertIn(shown(link), dead)
                self.assert_linked(root, link, shown(link))
            self.assertEqual((links[3].get("href"), links[3].get("data-search"), shown(links[3])), ("#layers", "dead", "and 3 more"))


class HostileTest(ReportTest):
    def hostile(self):
        model = c.llama("F32", layers=1)
        make = c.Maker("F32", 3)
        for name in HOSTILE:
            make.linear(name, 8, 16)
        model.tensors.update(make.tensors)
        model.linears += make.linears
        model.config["model_type"] = "<i onclick=alert(1)>&\"'"
        return model, c.write_folder(self.path("<b>in&\""), model)

    def test_names_are_text(self):
        model, source = self.hostile()
        out = self.quantize(source, "<script>alert(1)<q>&'\"")
        document, root = self.compare(source, out)  # which finds the names in the text
        self.assertEqual({layer["module"] for layer in document["quantized"][0]["layers"]}, set(model.linears))
        _, harmless = self.checkpoint("harmless", layers=1)
        _, other = self.compare(harmless, self.quantize(harmless, "q"), report="other.html")
        self.assertEqual({n.tag for n in root.nodes()} - {n.tag for n in other.nodes()}, set())
        self.assertEqual(len(root.find("script")), len(other.find("script")))
        self.assertEqual(len(root.find("style")), len(other.find("style")))
        for node in root.find("script") + root.find("style"):
            self.assertNotIn("alert(1)", node.text)
        known = {name for node in other.nodes() for name in node.attributes}
        self.assertEqual({name for node in root.nodes() for name in node.attributes} - known, set())

    def test_two_side_by_side(self):
        _, source = self.hostile()
        self.compare(source, self.quantize(source, "<td>1"), self.quantize(source, "<td>2"))

    def test_control_characters(self):
        make = c.Maker("F32", 3)
        for name in ("a\x1b[31m\nb", "a\u202e\u2066b", "c\x00d", "e\x9b31m"):
            make.linear(name, 8, 16)
        source = c.write_folder(self.path("in"), c.Model(make.tensors, c.config_of("llama", "L", "F32"), make.linears))
        out = self.path("out")
        ran = run("quantize", source, "-o", out, "--scheme", "w8a8")
        if ran.returncode:
            self.skipTest("such names are refused by quantize")
        ran = self.assert_done(run("compare", source, out, "--report", self.path("r.html"), "--json"))
        self.assertEqual(sorted(layer["module"] for layer in parse(ran.stdout)["quantized"][0]["layers"]), sorted(make.linears))
        with open(self.path("r.html"), encoding="utf-8") as file:
            self.assertEqual(re.findall("[\x00-\x08\x0b-\x1f\x7f]", file.read()), [])
        root = page.read(self.path("r.html"))
        self.assertEqual(page.outside_references(root), [])
        # Attributes keep the name itself; what is shown has nothing that changes a terminal or the order of text.
        self.assertEqual(re.findall("[\x7f-\x9f\u202a-\u202e\u2066-\u2069]", root.text), [])


class OtherCommandsTest(ReportTest):
    def test_quantize(self):
        model, source = self.checkpoint()
        stats = c.make_stats(model)
        c.write_safetensors(self.path("stats"), stats)
        file = self.path("report.html")
        flags = ["--scheme", "w8a8", "--smooth", "--stats", self.path("stats")]
        ran = self.assert_done(run("quantize", source, "-o", self.path("out"), *flags, "--report", file, "--json"))
        document = parse(ran.stdout)["comparison"]
        self.check(document, file)
        self.assertTrue(document["command"].startswith("kvant quantize "), document["command"])
        self.assertTrue(any(d["quantized"][0]["inputs"] and d["quantized"][0]["inputs"]["after"] for d in document["details"]))
        alone, _ = self.compare(source, self.path("out"), "--stats", self.path("stats"), report="again.html")
        for key in ("original", "details"):
            self.assertEqual(document[key], alone[key])
        self.assertEqual([q["layers"] for q in document["quantized"]], [q["layers"] for q in alone["quantized"]])
        # Without --json it is said where the report is.
        ran = self.assert_done(run("quantize", source, "-o", self.path("again"), *flags, "--report", self.path("r2.html")))
        self.assertIn(self.path("r2.html"), ran.stdout + ran.stderr)
        page.read(self.path("r2.html"))
        self.assertEqual(digest_tree(self.path("again")), digest_tree(self.path("out")))
        # Without --report there is no comparison.
        ran = self.assert_done(run("quantize", source, "-o", self.path("plain"), *flags, "--json"))
        self.assertNotIn("comparison", parse(ran.stdout))

    def test_compare_says_where_it_is(self):
        _, source = self.checkpoint(layers=1)
        out = self.quantize(source, "out")
        ran = self.assert_done(run("compare", source, out, "--report", self.path("r.html")))
        self.assertIn(self.path("r.html"), ran.stdout + ran.stderr)
        self.assertIn("q_proj", ran.stdout)

    def test_demo(self):
        ran = self.assert_done(run("demo", "--output", self.path("demo"), timeout=120))
        file = self.path("demo", "report.html")
        self.assertIn(file, ran.stdout)
        root = page.read(file)
        self.assertEqual(page.outside_references(root), [])
        self.assertEqual(len(root.find("section#depth svg.depth")), 8)
        self.assertEqual(len(root.find("table#table tbody tr")), 28)
        # Once more: what an earlier demo left is replaced.
        ran = self.assert_done(run("demo", "--output", self.path("demo"), "--report", self.path("own.html"), "--json", timeout=120),
                               quotes=True)
        document = parse(ran.stdout)["comparison"]
        root = self.check(document, self.path("own.html"))
        self.assertIn("docs/report.md", root.one("footer").text)
        self.assertEqual([len(q["layers"]) for q in document["quantized"]], [28] * 4)
        self.assertTrue(all(layer["output_sqnr_db"] is not None for q in document["quantized"] for layer in q["layers"]))
        self.assertTrue(root.find("svg.smoothing"))
        self.assertTrue(root.find("svg.inputs"))


class RefusalTest(ReportTest):
    def setUp(self):
        super().setUp()
        self.model, self.source = self.checkpoint(layers=1)
        self.out = self.quantize(self.source, "out")
        os.mkdir(self.path("reports"))
        self.file = self.path("reports", "report.html")

    def run_compare(self, *flags, **more):
        return run("compare", self.source, self.out, *flags, **more)

    def test_places_that_cannot_be(self):
        os.mkdir(self.path("folder"))
        for place in (self.path("nowhere", "r.html"), self.path("folder"), self.path("folder") + "/", "/dev/full",
                      self.path("out", "config.json", "r.html")):
            with self.subTest(place):
                before = digest_tree(self.folder)
                self.assert_refused(self.run_compare("--report", place), os.path.basename(place.rstrip("/")))
                self.assertEqual(digest_tree(self.folder), before)

    def test_quantize_into_no_folder(self):
        ran = run("quantize", self.source, "-o", self.path("new"), "--scheme", "w8a8", "--report", self.path("nowhere", "r.html"))
        self.assert_refused(ran, "nowhere")

    def test_quantize_into_what_it_makes(self):
        """The report may lie in the folder that the run makes, but not be it."""
        for output in ("new", "n.safetensors"):
            ran = run("quantize", self.source, "-o", self.path(output), "--scheme", "w8a8", "--report", self.path("reports", "..", output))
            self.assert_refused(ran, output, "output")
            self.assertFalse(os.path.exists(self.path(output)))
        inside = self.path("new", "report.html")
        for flags in ([], ["--force"]):
            self.assert_done(run("quantize", self.source, "-o", self.path("new"), "--scheme", "w8a8", "--report", inside, *flags))
            self.assertTrue(page.read(inside).find("table#table"))
            self.assert_done(run("verify", self.path("new")))

    def test_quantize_with_statistics_that_only_the_report_reads(self):
        """Refused before the work."""
        stats = c.make_stats(self.model, min_max=False)
        name = next(n for n in stats if n.endswith("down_proj.absmax"))
        stats[name] = c.Tensor.of([1.0, 2.0], "F32")
        c.write_safetensors(self.path("stats"), stats)
        ran = run("quantize", self.source, "-o", self.path("new"), "--scheme", "w8a8", "--stats", self.path("stats"), "--report", self.file)
        self.assert_refused(ran, name)
        self.assertFalse(os.path.exists(self.path("new")))
        self.assertFalse(os.path.exists(self.file))

    def test_statistics_of_another_model(self):
        c.write_safetensors(self.path("stats"), {"somewhere.else.absmax": c.Tensor.of([1.0], "F32")})
        document, root = self.compare(self.source, self.out, "--stats", self.path("stats"), report="reports/report.html")
        self.assertEqual(len(document["warnings"]), 1)
        self.assertIn("none", document["warnings"][0])
        self.assertIn(document["warnings"][0], root.one("ul#warnings").text)
        self.assertIn(document["warnings"][0], self.assert_done(self.run_compare("--stats", self.path("stats"))).stdout)

    def test_usage(self):
        for arguments in (["compare", self.source, self.out, "--report"], ["quantize", self.source, "-o", self.path("new"), "--report"],
                          ["demo", "--report"], ["compare", self.source, self.out, "--stats"]):
            ran = run(*arguments)
            self.assertEqual(ran.returncode, 2, ran)
            self.assert_says(ran.stderr, [arguments[-1]], ran)
            self.assertFalse(os.path.exists(self.path("new")))

    def test_an_old_report_is_replaced(self):
        for _ in range(2):
            self.compare(self.source, self.out, report="reports/report.html")
        self.assertEqual(os.listdir(self.path("reports")), ["report.html"])
        self.assertEqual(os.stat(self.file).st_mode & 0o777, 0o666 & ~self.umask())
        self.put("reports/report.html", "")
        self.compare(self.source, self.out, report="reports/report.html")

    def test_another_file_is_not_replaced(self):
        self.put("reports/report.html", "<!doctype html>what somebody wrote")
        before = digest_tree(self.folder)
        self.assert_refused(self.run_compare("--report", self.file), "report.html")
        self.assertEqual(digest_tree(self.folder), before)

    def umask(self):
        mask = os.umask(0o22)
        os.umask(mask)
        return mask

    def test_onto_an_input(self):
        c.write_safetensors(self.path("stats"), c.make_stats(self.model))
        c.write_safetensors(self.path("one.safetensors"), self.model.tensors)
        self.assert_done(run("quantize", self.path("one.safetensors"), "-o", self.path("q.safetensors"), "--scheme", "w8a8"))
        before = digest_tree(self.folder)
        files = ["one.safetensors", "q.safetensors", "stats"]
        for name in files:
            with self.subTest(name):
                for place in (self.path(name), os.path.join(self.folder, ".", "reports", "..", name)):
                    ran = run("compare", self.path("one.safetensors"), self.path("q.safetensors"), "--stats", self.path("stats"), "--report", place)
                    self.assert_refused(ran, name)
                    self.assertEqual(digest_tree(self.folder), before)
        for place in (os.path.join(self.source, "model.safetensors"), os.path.join(self.source, "config.json"),
                      os.path.join(self.out, "model.safetensors"), os.path.join(self.out, "config.json"), self.source, self.out):
            with self.subTest(place):
                self.assert_refused(self.run_compare("--report", place), os.path.basename(place))
                self.assertEqual(digest_tree(self.folder), before)
        for name in ("one.safetensors", "stats"):
            ran = run("quantize", self.path("one.safetensors"), "-o", self.path("n.safetensors"), "--scheme", "w8a8", "--smooth",
                      "--smooth-groups", "llama", "--stats", self.path("stats"), "--report", self.path(name))
            self.assert_refused(ran, name)
            self.assertEqual(digest_tree(self.path(name)), {"": before[name]})

    def test_links_to_an_input(self):
        """Refused, or the link replaced: the input stays."""
        before = digest_tree(self.source)
        os.symlink(os.path.join(self.source, "model.safetensors"), self.path("reports", "soft.html"))
        os.link(os.path.join(self.source, "model.safetensors"), self.path("reports", "hard.html"))
        for name in ("soft.html", "hard.html"):
            ran = self.run_compare("--report", self.path("reports", name))
            self.assertIn(ran.returncode, (0, 1), ran)
            self.assertEqual(digest_tree(self.source), before)

    def test_statistics_that_do_not_fit(self):
        module = self.model.linears[0]
        stats = c.make_stats(self.model, min_max=False)
        for name, tensor in (("short", c.Tensor.of([1.0] * 7, "F32")), ("nan", c.Tensor.of([math.nan] * 32, "F32")),
                             ("negative", c.Tensor.of([-1.0] * 32, "F32"))):
            with self.subTest(name):
                c.write_safetensors(self.path("stats"), {**stats, module + ".absmax": tensor})
                ran = self.run_compare("--stats", self.path("stats"), "--report", self.file)
                self.assert_refused(ran, module)
                self.assertEqual(os.listdir(self.path("reports")), [])
        for name, data in (("empty", b""), ("text", b"no safetensors at all")):
            with self.subTest(name):
                self.put("stats", data)
                self.assert_refused(self.run_compare("--stats", self.path("stats"), "--report", self.file), "stats")
        self.assert_refused(self.run_compare("--stats", self.path("none"), "--report", self.file), "none")
        self.assertEqual(os.listdir(self.path("reports")), [])

    def test_no_room(self):
        """Whole or not at all, and what was there before stays."""
        self.assert_done(self.run_compare("--report", self.file))
        whole = digest_tree(self.file)
        size = os.path.getsize(self.file)
        for old in (True, False):
            if not old:
                os.remove(self.file)
            for limit in (4096, size // 2, size - 1000):
                with self.subTest(limit, old=old):
                    # What it says must fit: it goes to a file too.
                    ran = self.run_compare("--report", self.file, "--top", "1", limits={"RLIMIT_FSIZE": limit})
                    self.assert_refused(ran, self.file, ("large", "limit", "space"))
                    self.assertEqual(os.listdir(self.path("reports")), ["report.html"] if old else [])
                    if old:
                        self.assertEqual(digest_tree(self.file), whole)
        self.assert_done(self.run_compare("--report", self.file, limits={"RLIMIT_FSIZE": 2 * size}))
        page.read(self.file)

    def test_a_comparison_that_fails(self):
        """No report of a part."""
        shutil.copytree(self.out, self.path("broken"))
        name = os.path.join(self.path("broken"), "model.safetensors")
        os.truncate(name, os.path.getsize(name) - 100)
        self.assert_refused(run("compare", self.source, self.path("broken"), "--report", self.file), "model.safetensors")
        self.assertEqual(os.listdir(self.path("reports")), [])


if __name__ == "__main__":
    unittest.main(verbosity=1)
