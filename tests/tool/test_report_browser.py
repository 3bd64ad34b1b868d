"""Reports in a real browser: on a phone and on a desk, light and dark, with the mouse and with the keyboard, on paper, and
without JavaScript. KVANT_SCREENSHOTS=FOLDER keeps pictures of what was seen."""

import csv
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import unittest

try:
    import browser as b
except ImportError as problem:
    print(f"skipped: python3-selenium is not here ({problem})")
    sys.exit(77)
import checkpoints as c
from test_eval import model as evaluated_model
from test_report import HOSTILE, METRICS, is_name
from tool import run

WORST_IS_LEAST = ("output_sqnr_db", "estimated_output_sqnr_db", "sqnr_db", "cosine")
WINDOWS = {"phone": b.PHONE, "desktop": b.DESKTOP}
SCREENSHOTS = os.environ.get("KVANT_SCREENSHOTS")

folder = None
browser = None
reports = {}

# What several questions to the page need.
JS = """
const all = (css, from = document) => [...from.querySelectorAll(css)];
const seen = e => e.checkVisibility({checkVisibilityCSS: true}) && e.getClientRects().length > 0;  // in a drawing only the latter is right
const rows = () => all('#table tbody tr');
const number = t => t === 'inf' ? Infinity : t === '-inf' ? -Infinity : t === 'nan' ? NaN : Number(t);
const name = row => row.querySelector('th[scope=row]').textContent.trim();
const modules = () => Object.fromEntries(rows().map(r => [r.dataset.i, name(r)]));
const heads = () => all('#table thead th[data-key]');
const cell = (row, head) => row.children[heads().indexOf(head)];
const middle = e => { const r = e.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2]; };
"""


def ask(script, *arguments):
    return browser.run(JS + script, *arguments)


def until(script, *arguments, seconds=3):
    return browser.wait(JS + script, *arguments, seconds=seconds)


def made(*arguments):
    ran = run(*arguments, timeout=120)
    if ran.returncode:
        raise AssertionError(str(ran))


def setUpModule():
    global folder, browser
    folder = tempfile.mkdtemp(prefix="kvant_report_browser_")
    path = lambda *names: os.path.join(folder, *names)

    made("demo", "--output", path("demo"))
    reports["demo"] = path("demo", "report.html")

    model = c.llama()
    source = c.write_folder(path("one"), model)
    c.write_safetensors(path("stats"), c.make_stats(model))
    made("quantize", source, "-o", path("one-q"), "--scheme", "w8a8", "--smooth", "--stats", path("stats"))
    reports["one"] = path("one.html")
    made("compare", source, path("one-q"), "--stats", path("stats"), "--report", reports["one"])

    # With zeros in the first row of some layers: a warning names them.
    model = c.llama("F32", hidden=16, intermediate=32, layers=72)
    for module in [m for m in model.linears if m.endswith("k_proj")][::12]:
        weight = model.tensors[module + ".weight"]
        values = weight.values()
        model.tensors[module + ".weight"] = c.Tensor.of([0.0] * weight.shape[1] + values[weight.shape[1]:], "F32", weight.shape)
    source = c.write_folder(path("many"), model)
    made("quantize", source, "-o", path("many-q"), "--scheme", "w8a8")
    reports["many"] = path("many.html")
    made("compare", source, path("many-q"), "--report", reports["many"])

    model = c.llama("F32", layers=1)
    make = c.Maker("F32", 3)
    for module in HOSTILE:
        make.linear(module, 8, 16)
    model.tensors.update(make.tensors)
    source = c.write_folder(path("<b>hostile&"), model)
    made("quantize", source, "-o", path("<img src=x onerror=alert(1)>"), "--scheme", "w8a8")
    reports["hostile"] = path("hostile.html")
    made("compare", source, path("<img src=x onerror=alert(1)>"), "--report", reports["hostile"])

    source = c.write_folder(path("language"), evaluated_model(), other_files=False)
    with open(path("ids"), "w", encoding="utf-8") as file:
        file.write(" ".join(str(i * 7 % 40) for i in range(300)))
    made("quantize", source, "-o", path("language-w8a8"))
    made("quantize", source, "-o", path("language-w4a16 </script><b>&"), "--scheme", "w4a16", "--group-size", "16")
    reports["eval"] = path("eval.html")
    made("eval", source, path("language-w8a8"), path("language-w4a16 </script><b>&"), "--tokens", path("ids"), "--length", "60",
         "--report", reports["eval"])

    browser = b.Browser()


def tearDownModule():
    if browser:
        browser.quit()
    shutil.rmtree(folder, ignore_errors=True)


class BrowserTest(unittest.TestCase):
    maxDiff = 4000

    def setUp(self):
        browser.scripts(True)
        self.show("desktop", "light")
        browser.console()
        browser.requests()
        self.opened = None

    def tearDown(self):
        if self.opened:
            self.assert_silent()

    def show(self, window, scheme, kind=""):
        browser.window(*WINDOWS[window])
        browser.media(scheme, kind)

    def open(self, name, fragment=""):
        browser.open(reports[name], fragment)
        self.opened = name

    def assert_silent(self):
        """Nothing on the console, and no request but for the reports themselves."""
        self.assertEqual(browser.console(), [])
        own = {pathlib.Path(path).resolve().as_uri() for path in reports.values()}
        # What is saved is a blob of the page itself.
        others = [url[:200] for url in browser.requests() if url.split("#")[0] not in own and not url.startswith(("data:", "blob:"))]
        self.assertEqual(others, [])

    def picture(self, name, whole=False):
        if SCREENSHOTS:
            os.makedirs(SCREENSHOTS, exist_ok=True)
            browser.screenshot(os.path.join(SCREENSHOTS, name + ".png"), whole)

    def open_all_layers(self):
        browser.run("document.querySelectorAll('details').forEach(d => d.open = true)")


class LooksTest(BrowserTest):
    def test_everywhere(self):
        for name in reports:
            for window, (width, _) in WINDOWS.items():
                for scheme in ("light", "dark"):
                    with self.subTest(name, window=window, scheme=scheme):
                        self.show(window, scheme)
                        self.open(name)
                        self.assertEqual(browser.run("return innerWidth"), width)
                        self.assert_no_sideways()
                        self.assert_contrast(scheme)
                        self.picture(f"{name}-{window}-{scheme}", whole=name in ("demo", "one", "eval"))
                        if name != "hostile":
                            self.open_all_layers()
                        self.assert_no_sideways()
                        self.assert_drawn(has_layers=name != "eval")
                        self.assert_silent()
                        if SCREENSHOTS and name == "demo":
                            browser.run("document.querySelector('section#worst').scrollIntoView()")
                            self.picture(f"{name}-{window}-{scheme}-layers")

    def assert_no_sideways(self):
        width, window, wide = ask("""
            const inside = e => { for (let p = e.parentElement; p; p = p.parentElement)
              if (/auto|scroll|hidden|clip/.test(getComputedStyle(p).overflowX)) return true; return false; };
            return [document.documentElement.scrollWidth, innerWidth, document.documentElement.scrollWidth <= innerWidth ? [] :
              all('body *').filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !inside(e)).slice(0, 5)
                .map(e => e.outerHTML.slice(0, 150))];""")
        self.assertLessEqual(width, window, f"the page scrolls sideways for {wide}")

    def assert_contrast(self, scheme):
        found = ask("""
            const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
            const cache = new Map();
            const colour = text => {
              if (!cache.has(text)) {
                canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
                const d = canvas.getImageData(0, 0, 1, 1).data; cache.set(text, [d[0], d[1], d[2], d[3] / 255]); }
              return cache.get(text); };
            const probe = document.body.appendChild(document.createElement('div'));
            probe.style.backgroundColor = 'Canvas';
            const base = colour(getComputedStyle(probe).backgroundColor);
            probe.remove();
            const over = (front, back) => [0, 1, 2].map(i => front[i] * front[3] + back[i] * (1 - front[3])).concat(1);
            const behind = e => {
              const layers = [];
              for (let p = e; p; p = p.parentElement) layers.push(colour(getComputedStyle(p).backgroundColor));
              return layers.reverse().reduce((back, front) => over(front, back), base); };
            const light = c => { const [r, g, b] = c.map(x => x / 255).map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
              return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
            const poor = [];
            const check = (e, paint) => {
              const style = getComputedStyle(e), back = behind(e), text = over(colour(style[paint]), back);
              const [a, b] = [light(text), light(back)].sort((x, y) => y - x), contrast = (a + 0.05) / (b + 0.05);
              if (contrast < 4.5) poor.push([contrast.toFixed(2), style[paint], 'on', back.join(), e.outerHTML.slice(0, 120)].join(' ')); };
            const written = e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
            check(document.body, 'color');
            let count = 0;
            for (const e of all('body *:not(script):not(style):not(svg *)').filter(e => written(e) && seen(e)).slice(0, 600)) { check(e, 'color'); ++count; }
            for (const e of all('.readout').filter(seen)) { check(e, 'color'); ++count; }
            for (const e of all('svg text').filter(seen).slice(0, 200)) { check(e, 'fill'); ++count; }
            return {poor: poor.slice(0, 8), page: light(behind(document.body)), count};""")
        self.assertEqual(found["poor"], [])
        self.assertGreater(found["count"], 20)
        if scheme == "light":
            self.assertGreater(found["page"], 0.5)
        else:
            self.assertLess(found["page"], 0.2)

    def assert_drawn(self, has_layers):
        """Every chart that is open has a size, shapes in it that have one, and text that can be read."""
        found = ask("""
            const wrong = [], say = (e, what) => wrong.push(what + ': ' + e.outerHTML.slice(0, 200));
            const charts = all('svg.chart, svg.depth, svg.histogram, svg.channels, svg.inputs, svg.smoothing').filter(seen);
            let least = Infinity;
            for (const svg of charts) {
              const r = svg.getBoundingClientRect();
              if (!(r.width >= 100 && r.height >= 30)) say(svg, `is ${r.width} x ${r.height}`);
              const box = svg.getBBox();
              if (!(box.width > 0 && box.height > 0)) say(svg, 'nothing in it');
              const shapes = all('path, rect, circle, polyline, polygon, line, use, ellipse', svg).filter(e => !e.closest('defs, symbol, clipPath, pattern, marker'));
              const real = shapes.filter(e => { const b = e.getBBox(); return b.width > 0 || b.height > 0; });
              if (!real.length) say(svg, 'no shape');
              for (const e of all('*', svg)) for (const a of e.attributes)
                if (!a.name.startsWith('data-') && !a.name.startsWith('aria-') && /\\b(NaN|nan|inf|Infinity|undefined)\\b/.test(a.value)) say(e, a.name);
              if (svg.matches('.histogram') && !real.some(e => { const b = e.getBBox(); return b.width > 0 && b.height > 0; })) say(svg, 'no bars');
              for (const e of all('use[data-i], .point', svg)) {
                const p = e.getBoundingClientRect();
                if (!(p.width > 0 && p.height > 0)) say(e, 'no marker');
                const [x, y] = middle(e);
                if (x < r.left - 1 || x > r.right + 1 || y < r.top - 1 || y > r.bottom + 1) say(e, 'outside of its chart');
              }
              for (const e of all('text', svg).filter(seen)) {
                if (!e.textContent.trim()) continue;
                const m = e.getScreenCTM(), size = parseFloat(getComputedStyle(e).fontSize) * Math.sqrt(Math.abs(m.a * m.d - m.b * m.c));
                least = Math.min(least, size);
                if (size < 8.99) say(e, `text of ${size} px`);
              }
            }
            const pictures = all('figure.strip').filter(seen);
            for (const figure of pictures) {
              const image = figure.querySelector('img, image');
              if (!image) { say(figure, 'no image'); continue; }
              const r = image.getBoundingClientRect();
              if (!(r.width >= 50 && r.height >= 3)) say(image, `is ${r.width} x ${r.height}`);
              if (image.tagName.toLowerCase() === 'img' && !(image.complete && image.naturalWidth > 0)) say(image, 'was not loaded');
              if (image.tagName.toLowerCase() === 'img' && (image.naturalWidth != figure.dataset.columns || image.naturalHeight != figure.dataset.rows)) say(image, 'size');
            }
            return {wrong: wrong.slice(0, 6), charts: charts.length, pictures: pictures.length, least,
                    layers: all('div.layer').filter(seen).length};""")
        self.assertEqual(found["wrong"], [])
        if not has_layers:
            self.assertEqual(found["charts"], 3)
            return
        self.assertGreater(found["layers"], 0)
        self.assertEqual(found["pictures"], found["layers"])
        self.assertGreaterEqual(found["charts"], 1 + 2 * found["layers"])

    def test_a_phone_says_what_can_be_scrolled(self):
        for name in ("demo", "one", "eval"):
            for window in WINDOWS:
                with self.subTest(name, window=window):
                    self.show(window, "light")
                    self.open(name)
                    found = ask("""return all('.scroll, .hint').filter(e => seen(e)).map(e => {
                        const hint = getComputedStyle(e, '::before').content, chart = e.querySelector('svg');
                        return [e.scrollWidth > e.clientWidth + 1, hint.includes('scroll sideways'), !!chart, e.innerHTML.slice(0, 60)]; });""")
                    charts = [row for row in found if row[2]]
                    self.assertTrue(charts)
                    if window == "phone":
                        self.assertTrue(all(wide and told for wide, told, _, _ in charts), charts)
                        self.assertEqual([row for row in found if row[0] and not row[1] and "errors" not in row[3]], [])
                    else:
                        self.assertEqual([row for row in found if row[1]], [])

    def test_a_checkpoint_has_one_colour(self):
        for scheme in ("light", "dark"):
            self.show("desktop", scheme)
            self.open("demo")
            colours = ask("""
                const of = (e, what) => getComputedStyle(e)[what];
                return [0, 1, 2, 3].map(q => {
                  const side = `#d0 .layer[data-q='${q}'] `, found = new Set();
                  found.add(of(all('[data-fact=label] .patch')[q], 'backgroundColor'));
                  for (const e of all('#depth figcaption').filter((_, i) => i % 4 === q)) found.add(of(e.querySelector('.patch'), 'backgroundColor'));
                  for (const e of all(`#table th[data-q='${q}'] .patch`)) found.add(of(e, 'backgroundColor'));
                  for (const e of all(side + '.bars')) found.add(of(e, 'fill'));
                  for (const e of all(side + '.line.own')) found.add(of(e, 'stroke'));
                  for (const e of all(side + '.band')) found.add(of(e, 'stroke'));
                  return [...found]; });""")
            self.assertEqual([len(own) for own in colours], [1] * 4, colours)
            self.assertEqual(len({own[0] for own in colours}), 4)

    def test_kinds_have_their_own_colours(self):
        self.open("one")
        colours = ask("""
            const kind = Object.fromEntries(rows().map(r => [r.dataset.i, r.dataset.kind]));
            const found = {};
            for (const e of all('svg.depth use[data-i]')) { const s = getComputedStyle(e);
              (found[kind[e.dataset.i]] ||= new Set()).add([s.fill, s.color, s.stroke].join()); }
            return Object.entries(found).map(([k, v]) => [k, [...v]]);""")
        self.assertEqual(len(colours), 7)
        for kind, used in colours:
            self.assertEqual(len(used), 1, kind)
        self.assertEqual(len({used[0] for _, used in colours}), 7)

    def test_without_javascript(self):
        for name, window in (("one", "desktop"), ("demo", "phone")):
            with self.subTest(name, window=window):
                self.show(window, "light")
                self.open(name)
                want = ask("return [rows().length, all('svg.depth use').length, all('div.layer').length]")
                browser.scripts(False)
                try:
                    self.open(name)
                    got = ask("return [rows().filter(seen).length, all('svg.depth use').filter(seen).length, all('div.layer').length]")
                    self.assertEqual(got, want)
                    self.open_all_layers()
                    self.assert_drawn(window)
                    self.assert_no_sideways()
                    self.picture(f"{name}-{window}-without-javascript")
                finally:
                    browser.scripts(True)

    def test_on_paper(self):
        self.open("one")
        data = browser.pdf()
        self.assertTrue(data.startswith(b"%PDF"))
        self.assertGreater(len(data), 10_000)
        self.assertGreater(len(re.findall(rb"/Type\s*/Page\b(?!s)", data)), 0)
        if SCREENSHOTS:
            os.makedirs(SCREENSHOTS, exist_ok=True)
            with open(os.path.join(SCREENSHOTS, "one.pdf"), "wb") as file:
                file.write(data)
        # No row is left out, in a dark window neither.
        self.show("desktop", "dark", "print")
        self.open("one")
        self.assertEqual(ask("return rows().filter(seen).length"), ask("return rows().length"))
        self.picture("one-print", whole=True)

    def test_opens_quickly(self):
        self.open("many")
        until("return performance.getEntriesByType('navigation')[0].loadEventEnd > 0")
        loaded = browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd")
        sorting = ask("""const t = performance.now(); all('#table thead th[data-key=mse] button')[0].click();
                      document.body.getBoundingClientRect(); return performance.now() - t;""")
        print(f"\n504 layers: {os.path.getsize(reports['many']) / 1000:.0f} kB, open after {loaded:.0f} ms, sorted in {sorting:.0f} ms")
        self.assertEqual(ask("return rows().length"), 504)
        self.assertLess(loaded, 5000)
        self.assertLess(sorting, 2000)


class TableTest(BrowserTest):
    def column(self, key, q):
        """(texts, data-v or nothing) of a column, row by row; and its aria-sort."""
        return ask("""const head = heads().find(h => h.dataset.key === arguments[0] && (h.dataset.q || '0') === arguments[1]);
                   return {text: rows().map(r => cell(r, head).textContent.trim()),
                           value: rows().map(r => { const c = cell(r, head), v = c.closest('[data-v]') || c.querySelector('[data-v]');
                                                    return v ? v.dataset.v : null; }),
                           sort: head.getAttribute('aria-sort'),
                           others: heads().filter(h => h !== head).map(h => h.getAttribute('aria-sort')).filter(s => s && s !== 'none')};""", key, q)

    def press(self, key, q):
        css = f"#table thead th[data-key={key}]" + (f"[data-q='{q}']" if key in METRICS else "")
        heads = browser.find(css)
        if not heads:
            heads = browser.find(f"#table thead th[data-key={key}]")
        browser.click(heads[0].find_element(b.By.CSS_SELECTOR, "button"))

    def check_sorting(self, name):
        columns = ask("return heads().filter(seen).map(h => [h.dataset.key, h.dataset.q || '0'])")
        by_number = next(key for key, _ in columns if key in METRICS)
        before = sorted(ask("return rows().map(name)"))
        for key, q in columns:
            with self.subTest(name, key=key, q=q):
                # From another order: a column that is sorted already would be turned around.
                self.press("module" if key != "module" else by_number, "0")
                self.press(key, q)
                first = self.column(key, q)
                self.press(key, q)
                second = self.column(key, q)
                self.assertEqual({first["sort"], second["sort"]}, {"ascending", "descending"})
                self.assertEqual(first["others"] + second["others"], [])
                self.assertEqual(sorted(ask("return rows().map(name)")), before)
                if key in METRICS:
                    numbers = [[float(v) for v in column["value"] if v not in (None, "nan")] for column in (first, second)]
                    self.assertGreater(len(numbers[0]), 1)
                    self.assertEqual(numbers[0], sorted(numbers[0], reverse=key not in WORST_IS_LEAST))
                    self.assertEqual(numbers[1], sorted(numbers[1], reverse=key in WORST_IS_LEAST))
                    self.assertEqual((first["sort"], second["sort"]),
                                     ("ascending", "descending") if key in WORST_IS_LEAST else ("descending", "ascending"))
                elif key == "module":
                    self.assertEqual(first["text"], second["text"][::-1])
                else:  # the same beside each other; of shapes, the same number of weights
                    seen = first["value" if key == "shape" else "text"]
                    changes = sum(a != b for a, b in zip(seen, seen[1:]))
                    self.assertEqual(changes, len(set(seen)) - 1)

    def test_sorting(self):
        self.open("one")
        self.check_sorting("one")

    def test_the_whole_heading_sorts(self):
        """Its corners as well as its words; and the keyboard."""
        self.open("one")
        for key in ("mse", "module", "cosine"):
            head = browser.one(f"#table thead th[data-key={key}]")
            browser.run("arguments[0].scrollIntoView({block: 'center', inline: 'nearest'})", head)
            before = None
            for right, down in ((-1, -1), (1, 1), (1, -1)):
                width, height = browser.run("const r = arguments[0].getBoundingClientRect(); return [r.width, r.height];", head)
                browser.hover(head, round(right * (width / 2 - 3)), round(down * (height / 2 - 3)))
                b.ActionChains(browser, duration=0).click().perform()
                after = self.column(key, "0")
                self.assertIn(after["sort"], ("ascending", "descending"))
                self.assertNotEqual(after["sort"], before)
                self.assertEqual(after["others"], [])
                before = after["sort"]
            for press in ("Enter", "Space"):
                browser.run("arguments[0].querySelector('button').focus()", head)
                browser.keys(press)
                after = self.column(key, "0")["sort"]
                self.assertNotEqual(after, before, press)
                before = after

    def saved(self, form):
        """What a button saves; the browser's download itself is not waited for."""
        return ask("""const made = [], make = URL.createObjectURL;
                   URL.createObjectURL = blob => { made.push(blob); return make.call(URL, blob); };
                   document.querySelector(`#save button[data-as=${arguments[0]}]`).click();
                   URL.createObjectURL = make;
                   return made[0].text().then(text => [made.length, made[0].type, text]);""", form)

    def test_saving_the_table(self):
        for name in ("demo", "hostile"):
            with self.subTest(name):
                self.open(name)
                table = ask("""const metric = heads().filter(h => h.dataset.q);
                            return rows().flatMap(r => [...new Set(metric.map(h => h.dataset.q))].map(q => [name(r), q,
                              Object.fromEntries(metric.filter(h => h.dataset.q === q).map(h => [h.dataset.key, cell(r, h).dataset.v ?? null]))]));""")
                count, kind, text = self.saved("json")
                self.assertEqual((count, kind), (1, "application/json"))
                records = json.loads(text)
                self.assertEqual(len(records), len(table))
                labels = ask("return all('[data-fact=label] td').map(e => e.textContent)")
                for record, (module, q, numbers) in zip(records, table):
                    self.assertTrue(is_name(module, record["module"]), module)
                    self.assertEqual(record["checkpoint"], labels[int(q)])
                    for key, value in numbers.items():
                        self.assertEqual(record[key], None if value is None else float(value), f"{module} {key}")
                    self.assertGreater(record["rows"] * record["columns"], 0)
                count, kind, text = self.saved("csv")
                self.assertEqual((count, kind), (1, "text/csv"))
                lines = list(csv.DictReader(text.splitlines()))
                self.assertEqual(len(lines), len(records))
                for line, record in zip(lines, records):
                    # A spreadsheet must not take a name for a formula.
                    self.assertEqual(line["module"], record["module"].replace("=SUM", "'=SUM"))
                    self.assertEqual(float(line["sqnr_db"]), record["sqnr_db"])
                # What is hidden is not saved.
                self.search("up_proj")
                wanted = ask("return rows().filter(seen).length")
                self.assertEqual(len(json.loads(self.saved("json")[2])), wanted * len(labels))
        self.assertIn("n" * 600, text)  # a name is shortened for the eye only
        self.assertIn("\"'=SUM(A1)\"", text)

    def test_a_saved_file_arrives(self):
        target = os.path.join(folder, "saved")
        os.makedirs(target, exist_ok=True)
        browser.devtools("Browser.setDownloadBehavior", behavior="allow", downloadPath=target)
        self.open("one")
        for form in ("csv", "json"):
            browser.click(f"#save button[data-as={form}]")
            b.WebDriverWait(browser, 5).until(lambda _: os.path.exists(os.path.join(target, "layers." + form)))
        with open(os.path.join(target, "layers.csv"), encoding="utf-8", newline="") as file:
            self.assertEqual(len(list(csv.DictReader(file))), 14)

    def test_warnings_lead_to_layers(self):
        self.open("many")
        links = browser.find("#warnings a")
        self.assertEqual(len(links), 4)
        for link in links[:3]:
            browser.click(link)
            place = ask("return location.hash")
            self.assertRegex(place, "^#[dr][0-9]+$")
            until("""const e = document.querySelector(arguments[0]), r = e.getBoundingClientRect();
                  return e.open !== false && r.top < innerHeight && r.bottom > 0;""", place)
        browser.click(links[3])
        until("return rows().filter(seen).length === 6")
        self.assertEqual(ask("return document.querySelector('#search').value"), "dead")
        self.assertTrue(all(name.endswith("k_proj") for name in ask("return rows().filter(seen).map(name)")))

    def test_sorting_on_a_phone(self):
        self.show("phone", "light")
        self.open("many")
        self.press("module", "0")
        self.press("sqnr_db", "0")
        numbers = [float(v) for v in self.column("sqnr_db", "0")["value"]]
        self.assertEqual(numbers, sorted(numbers))
        self.assertEqual(len(numbers), 504)
        self.picture("many-phone-sorted")

    def test_first_order(self):
        for name in reports:
            self.open(name)
            worst = ask("""const key = heads().find(h => h.dataset.q)?.dataset.key, h = heads().filter(h => h.dataset.key === key);
                        return rows().map(r => Math.min(...h.map(h => cell(r, h)).filter(c => c.dataset.v).map(c => number(c.dataset.v))))
                                     .map(x => x === Infinity ? 'inf' : x);""")
            worst = [float(x) for x in worst]
            self.assertEqual(worst, sorted(worst), name)

    def test_metrics_side_by_side(self):
        self.open("demo")
        options = ask("return all('#metric option').map(o => o.value)")
        self.assertEqual(options[0], "output_sqnr_db")
        self.assertEqual(ask("return document.querySelector('#table').dataset.metric"), options[0])
        self.assertIn("estimated_output_sqnr_db", options)
        self.assertGreater(len(options), 4)
        for option in options:
            with self.subTest(option):
                ask("""const s = document.querySelector('#metric'); s.value = arguments[0];
                    s.dispatchEvent(new Event('input', {bubbles: true})); s.dispatchEvent(new Event('change', {bubbles: true}));""", option)
                got = ask("""return heads().filter(h => h.dataset.key === arguments[0]).map(h =>
                          [h.dataset.q, seen(h), rows().every(r => seen(cell(r, h)))]);""", option)
                self.assertEqual(sorted(got), [[str(q), True, True] for q in range(4)])
        self.open("demo")
        self.check_sorting("demo")

    def search(self, text):
        field = browser.one("#search")
        browser.click(field)
        browser.keys("Control+a", "Backspace")
        if text:
            field.send_keys(text)

    def test_search(self):
        self.open("demo")
        total = ask("return rows().length")
        for text in ("down_proj", "DOWN_PROJ", "layers.1.", "nothing is called so", "down_proj"):
            with self.subTest(text):
                names = ask("return rows().map(name)")
                want = [n for n in names if text.lower() in n.lower()]
                self.search(text)
                until("return rows().filter(seen).length === arguments[0]", len(want))
                self.assertEqual(ask("return rows().filter(seen).map(name)"), want)
                shown = [int(n) for n in re.findall(r"\d+", ask("return document.querySelector('#shown').textContent"))]
                self.assertEqual(shown[:2], [len(want), total])
        kinds = ask("""const look = e => { const s = getComputedStyle(e), p = getComputedStyle(e.parentElement);
                      return [s.opacity, s.fillOpacity, s.display, s.visibility, s.fill, p.opacity].join(); };
                    const m = modules(), down = new Set(), other = new Set();
                    for (const e of all('svg.depth use[data-i]')) (m[e.dataset.i].includes('down_proj') ? down : other).add(look(e));
                    return [[...down], [...other]];""")
        self.assertFalse(set(kinds[0]) & set(kinds[1]), "points that do not match look like those that do")
        self.picture("demo-desktop-search")
        self.search("")
        until("return rows().filter(seen).length === arguments[0]", total)
        shown = [int(n) for n in re.findall(r"\d+", ask("return document.querySelector('#shown').textContent"))]
        self.assertIn(total, shown)
        # On a phone, too.
        self.show("phone", "light")
        self.search("down_proj")
        until("return rows().filter(seen).length === arguments[0]", 4)
        # Sorting keeps to what was searched.
        self.search("up_proj")
        self.press("output_sqnr_db", "0")
        self.assertTrue(all("up_proj" in n for n in ask("return rows().filter(seen).map(name)")))

    def test_kinds(self):
        for window in WINDOWS:
            with self.subTest(window):
                self.show(window, "light")
                self.open("one")
                button = browser.one("#kinds button[data-kind=q]")
                for pressed in ("false", "true"):
                    browser.click(button)
                    self.assertEqual(button.get_dom_attribute("aria-pressed"), pressed)
                    found = ask("""const kind = Object.fromEntries(rows().map(r => [r.dataset.i, r.dataset.kind]));
                                return [rows().map(r => [r.dataset.kind, seen(r)]),
                                        all('svg.depth use[data-i]').map(e => [kind[e.dataset.i], seen(e)])];""")
                    for what, states in zip(("rows", "points"), found):
                        self.assertEqual({is_seen for kind, is_seen in states if kind == "q"}, {pressed == "true"}, what)
                        self.assertEqual({is_seen for kind, is_seen in states if kind != "q"}, {True}, what)
                    if pressed == "false":
                        shown = [int(n) for n in re.findall(r"\d+", ask("return document.querySelector('#shown').textContent"))]
                        self.assertEqual(shown[:2], [12, 14])

    def assert_opened(self, css):
        until("""const d = document.querySelector(arguments[0]), r = d.getBoundingClientRect();
              return d.open && r.top > -40 && r.top < innerHeight - 40;""", css)

    def test_links_open_layers(self):
        for name, window in (("demo", "phone"), ("many", "desktop")):
            with self.subTest(name, window=window):
                self.show(window, "light")
                self.open(name)
                self.assertTrue(ask("return document.querySelector('#d0').open"))
                for place in ("d3", "d1"):
                    self.assertFalse(ask("return document.getElementById(arguments[0]).open", place))
                    browser.click(f"#table tbody a[href='#{place}']")
                    self.assert_opened("#" + place)
                browser.click(browser.find("tr[data-fact=worst_sqnr_db] a")[0])
                place = ask("return location.hash")
                self.assertTrue(place)
                self.assertTrue(ask("""const e = document.querySelector(arguments[0]), r = e.getBoundingClientRect();
                                    return r.top < innerHeight && r.bottom > 0""", place))
        # A fold that the reader closed opens again by the same link.
        self.open("one")
        browser.click("#table tbody a[href='#d2']")
        self.assert_opened("#d2")
        browser.click("#d2 > summary")
        until("return !document.querySelector('#d2').open")
        browser.click("#table tbody a[href='#d2']")
        self.assert_opened("#d2")

    def test_an_address_with_a_layer(self):
        browser.get("about:blank")
        self.open("many", "#d5")
        self.assert_opened("#d5")


class ChartTest(BrowserTest):
    def lone_points(self):
        """Points with no other near them: their middle in the window, module and SQNR."""
        return ask("""
            const svg = document.querySelector('svg.depth');
            svg.scrollIntoView({block: 'center', behavior: 'instant'});
            const names = modules(), q = heads().find(h => h.dataset.key === svg.dataset.key && h.dataset.q === svg.dataset.q);
            const points = all('use[data-i]', svg).map(e => ({e, at: middle(e)}));
            return points.filter(a => points.every(b => a === b || Math.hypot(a.at[0] - b.at[0], a.at[1] - b.at[1]) > 7))
              .map(p => [p.at[0], p.at[1], names[p.e.dataset.i], number(cell(rows().find(r => r.dataset.i === p.e.dataset.i), q).dataset.v)]);""")

    def assert_read(self, module, value):
        """The readout of the depth chart tells this layer."""
        text = until("return all('#depth .readout').map(e => e.textContent).find(t => t.includes(arguments[0]))", module)
        numbers = [float(n) for n in re.findall(r"-?\d+\.\d+", text.replace(module, ""))]
        self.assertTrue(any(abs(n - value) < 0.06 for n in numbers), f"{text!r} has no {value}")

    def test_pointing_at_layers(self):
        for name in ("one", "demo"):
            with self.subTest(name):
                self.open(name)
                points = self.lone_points()
                self.assertGreater(len(points), 2)
                for x, y, module, value in points[:3] + points[-2:]:
                    browser.hover_at(x, y)
                    self.assert_read(module, value)
                self.picture(f"{name}-desktop-pointing")

    def test_pointing_at_charts_of_a_layer(self):
        for name in ("one", "demo"):
            self.open(name)
            self.open_all_layers()
            # demo: four checkpoints beside each other, one of them smoothed.
            for css in ("svg.histogram", "svg.channels", "svg.inputs", "svg.smoothing", "figure.strip"):
                with self.subTest(name, chart=css):
                    charts = browser.find(f"section#worst div.layer {css}")
                    self.assertTrue(charts)
                    browser.hover_at(2, 2)
                    browser.run("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", charts[0])
                    read = "return all('section#worst .readout').map(e => e.textContent.trim()).join('\\n')"
                    seen = set()
                    before = ask(read)
                    for part in (-0.3, -0.15, 0.05, 0.2, 0.35):
                        width = browser.run("return arguments[0].getBoundingClientRect().width", charts[0])
                        browser.hover(charts[0], round(part * width), 0)
                        seen.add(ask(read))
                    seen.discard(before)
                    self.assertGreater(len(seen), 1, f"hovering changes no readout: {before[:200]!r}")
                    self.assertTrue(all(re.search(r"\d", text) for text in seen))

    def test_keyboard(self):
        self.open("demo")
        where = """const e = document.activeElement; return e === document.body ? 'body' : e.id ? '#' + e.id : e.matches('svg.depth') ? e.dataset.key + e.dataset.q
                : e.matches('th[data-key] button') ? 'th:' + e.closest('th').dataset.key : e.matches('#kinds button') ? 'kind' : e.matches('a') ? 'link' : e.tagName;"""
        reached = []
        for _ in range(70):
            browser.keys("Tab")
            reached.append(ask(where))
            if reached[-1] in ("sqnr_db0", "#search", "th:module", "th:output_sqnr_db"):
                style = ask("const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth, s.boxShadow, s.borderColor];")
                self.assertTrue(style[0] != "none" and style[1] != "0px" or style[2] != "none", f"the focus on {reached[-1]} is not seen: {style}")
            if reached[-1] == "th:output_sqnr_db":
                break
        for stop in ("output_sqnr_db0", "output_sqnr_db1", "sqnr_db0", "sqnr_db1", "kind", "#search", "#metric", "BUTTON", "th:module", "th:output_sqnr_db"):
            self.assertIn(stop, reached)
        self.assertEqual(reached.count("sqnr_db0"), 1)
        # Enter on a header sorts.
        browser.keys("Enter")
        self.assertIn(ask("return heads().find(h => h.dataset.key === 'output_sqnr_db').getAttribute('aria-sort')"), ("ascending", "descending"))

    def test_keys_in_the_depth_chart(self):
        self.open("demo")
        browser.run("document.querySelector('svg.depth').focus()")
        self.assertTrue(ask("return document.activeElement.matches('svg.depth')"))
        told = "return all('#depth .readout').map(e => e.textContent.trim()).join(' ')"
        names = sorted(ask("return rows().map(name)"), key=len, reverse=True)
        seen = []
        for _ in range(5):
            browser.keys("Right")
            seen.append(ask(told))
        self.assertEqual(len(set(seen)), 5, seen)
        for text in seen:
            self.assertTrue(any(name in text for name in names), text)
        browser.keys("Left")
        self.assertEqual(ask(told), seen[-2])
        details = ask("return Object.fromEntries(all('details[data-module]').filter(d => !d.open).map(d => [d.dataset.module, d.id]))")
        for _ in range(28):
            module = next(name for name in names if name in ask(told))
            if module in details:
                break
            browser.keys("Right")
        self.assertIn(module, details)
        browser.keys("Enter")
        until("""const d = document.getElementById(arguments[0]), r = d.getBoundingClientRect();
              return d.open && r.top > -40 && r.top < innerHeight - 40;""", details[module])

    def test_hostile_names_stay_text(self):
        self.open("hostile")
        tags = "return [all('*').length, all('script').length, all('img, image').length, all('b, i').length]"
        before = ask(tags)
        for x, y, _, _ in self.lone_points():
            browser.hover_at(x, y)
        browser.run("document.querySelector('svg.depth').focus()")
        for _ in range(len(HOSTILE) + 7):
            browser.keys("Right")
        after = ask(tags)
        self.assertEqual(after[1:], before[1:])
        browser.one("#search").send_keys("<script>")
        until("return rows().filter(seen).length === arguments[0]", sum("<script>" in name for name in HOSTILE))
        names = ask("return rows().map(name)")
        for name in HOSTILE:
            self.assertTrue(any(is_name(text, name) for text in names), name)
        self.picture("hostile-desktop-search")


if __name__ == "__main__":
    if b.missing():
        print("skipped: not here:", *b.missing())
        sys.exit(77)
    unittest.main(verbosity=1)
