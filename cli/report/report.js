'use strict';
// Everything is read from the page itself: the numbers are in data-v and data-… lists. Without this script the page
// shows the same; it adds sorting, filtering, and what the pointer or the keyboard points at.
(() => {
  const one = (selector, from = document) => from.querySelector(selector);
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];
  const table = one('#table');
  const body = table.tBodies[0];
  const rows = all('tr', body);
  const byNumber = rows.slice();  // in the first order, in which points count them
  const names = byNumber.map((row) => row.cells[0].textContent);
  // A name as it is, where it is shown otherwise.
  const modules = byNumber.map((row, i) => row.cells[0].dataset.module ?? names[i]);
  const lowered = byNumber.map((row, i) => (names[i] + '\n' + (one('.notes', row)?.textContent ?? '')).toLowerCase());
  const numberOf = (row) => +row.dataset.i;

  // ---- Sorting
  const heads = all('th', table.tHead);
  const text = new Intl.Collator('en', {numeric: true});
  // The worst first: where little is bad, from below.
  const upwards = new Set(['module', 'kind', 'notes', 'sqnr_db', 'cosine', 'output_sqnr_db', 'estimated_output_sqnr_db']);
  const number = (value) => value === 'inf' ? Infinity : value === '-inf' ? -Infinity : +value;
  const compare = (a, b) => a < b ? -1 : a > b ? 1 : 0;
  heads.forEach((head, column) => {
    // All of the cell, and the button in it for the keyboard.
    head.addEventListener('click', () => {
      const key = head.dataset.key;
      const first = upwards.has(key) ? 'ascending' : 'descending';
      const other = first === 'ascending' ? 'descending' : 'ascending';
      const order = head.getAttribute('aria-sort') === first ? other : first;
      heads.forEach((h) => h.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', order);
      const sign = order === 'ascending' ? 1 : -1;
      const words = key === 'module' || key === 'kind' || key === 'notes';
      const keyed = byNumber.map((row, i) => {
        const cell = row.cells[column];
        const value = cell.dataset.v;
        return {row, i, word: words ? cell.textContent : '', known: words || value !== undefined, value: number(value)};
      });
      keyed.sort((a, b) => {
        if (words) {
          if (!a.word !== !b.word) return a.word ? -1 : 1;  // what has no word comes last in either order
          return sign * text.compare(a.word, b.word) || a.i - b.i;
        }
        // What is not known comes last in either order; NaN is the worst.
        if (a.known !== b.known) return a.known ? -1 : 1;
        const bad = Number.isNaN(b.value) - Number.isNaN(a.value);
        if (bad) return order === first ? bad : -bad;
        return sign * compare(a.value, b.value) || a.i - b.i;
      });
      body.append(...keyed.map((k) => k.row));
    });
  });

  const metric = one('#metric');
  if (metric) {
    const choose = () => { table.dataset.metric = metric.value; };
    metric.addEventListener('change', () => {
      choose();
      // Rows in the order of a number that is not to be seen would be in none.
      const head = heads.find((h) => h.dataset.key === metric.value);
      head.removeAttribute('aria-sort');
      one('button', head).click();
    });
    choose();
  }

  // ---- Filtering
  const search = one('#search');
  const shown = one('#shown');
  const charts = all('svg.depth');
  const points = charts.map((chart) => all('use', chart));
  const hiddenKinds = new Set();
  const filter = () => {
    const wanted = search.value.trim().toLowerCase();
    const fits = lowered.map((name) => name.includes(wanted));
    let count = 0;
    byNumber.forEach((row, i) => {
      row.hidden = !fits[i] || hiddenKinds.has(row.dataset.kind);
      if (!row.hidden) ++count;
    });
    points.forEach((list) => list.forEach((p) => p.classList.toggle('dim', !fits[+p.dataset.i])));
    shown.textContent = `${count} of ${byNumber.length} layers`;
  };
  search.addEventListener('input', filter);
  all('#kinds button').forEach((button) => button.addEventListener('click', () => {
    const on = button.getAttribute('aria-pressed') !== 'true';
    const kind = button.dataset.kind;
    button.setAttribute('aria-pressed', on);
    if (on) hiddenKinds.delete(kind); else hiddenKinds.add(kind);
    charts.forEach((chart) => all('g[data-kind]', chart).forEach((g) => {
      if (g.dataset.kind === kind) g.classList.toggle('off', !on);
    }));
    filter();
  }));

  // "and 4 more" of a warning
  all('a[data-search]').forEach((link) => link.addEventListener('click', () => {
    search.value = link.dataset.search;
    filter();
  }));

  // ---- Saving the table: a line for each layer and checkpoint, of what is shown, in the order that is shown
  const labels = all('[data-fact=label] td').map((cell) => cell.textContent);
  const columns = heads.map((head, column) => ({key: head.dataset.key, q: head.dataset.q, column})).filter(({q}) => q);
  const keys = [...new Set(columns.map(({key}) => key))];
  const records = () => all('tr', body).filter((row) => !row.hidden).flatMap((row) => labels.map((checkpoint, q) => {
    const own = columns.filter((c) => +c.q === q).map(({key, column}) => [key, row.cells[column].dataset.v ?? null]);
    const [lines, width] = row.cells[2].textContent.split('×');
    return {checkpoint, module: modules[numberOf(row)], kind: row.dataset.kind, rows: lines, columns: width,
      notes: one('.notes', row)?.textContent ?? '', ...Object.fromEntries(own)};
  })).filter((record) => keys.some((key) => record[key] !== null));  // a checkpoint without the layer has no line
  const isText = new Set(['checkpoint', 'module', 'kind', 'notes']);
  // A name must not become a formula of a spreadsheet.
  const quoted = (value) => '"' + String(value ?? '').replace(/^[=+\-@\t\r]/, "'$&").replaceAll('"', '""') + '"';
  const forms = {
    csv: {type: 'text/csv', text: (list) => [Object.keys(list[0] ?? {}), ...list.map((record) => Object.entries(record)
      .map(([key, value]) => isText.has(key) ? quoted(value) : value ?? ''))].map((line) => line.join() + '\r\n').join('')},
    json: {type: 'application/json', text: (list) => JSON.stringify(list, (key, value) =>
      typeof value === 'string' && !isText.has(key) && Number.isFinite(number(value)) ? number(value) : value, 1) + '\n'},
  };
  const saving = one('#save');
  saving.hidden = false;
  all('button', saving).forEach((button) => button.addEventListener('click', () => {
    const form = forms[button.dataset.as];
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([form.text(records())], {type: form.type}));
    link.download = 'layers.' + button.dataset.as;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }));

  // ---- Opening a layer
  const opened = () => {
    const target = /^#[dr]\d+$/.test(location.hash) && one(location.hash);
    if (!target) return;
    if (target.tagName === 'DETAILS') target.open = true;
    target.scrollIntoView({block: target.tagName === 'DETAILS' ? 'start' : 'center'});
  };
  const open = (i) => {
    const link = one('th a', byNumber[i]);
    const hash = link ? link.getAttribute('href') : '#r' + i;
    if (location.hash === hash) opened(); else location.hash = hash;
    const target = one(hash);
    const focus = link ? one('summary', target) : byNumber[i].closest('.tall');
    focus.focus({preventScroll: true});
  };
  addEventListener('hashchange', opened);
  // A link to where the page is already changes nothing, but its layer may have been closed.
  addEventListener('click', (event) => {
    const link = event.target.closest('a[href^="#"]');
    if (link && link.getAttribute('href') === location.hash) opened();
  });
  opened();

  // ---- The chart across depth
  const columnOf = ({key, q}) => heads.findIndex((h) => h.dataset.key === key && h.dataset.q === q);
  charts.forEach((chart, c) => {
    const readout = one('.readout', chart.closest('figure'));
    const column = columnOf(chart.dataset);
    const places = points[c].map((use) => ({use, x: +use.getAttribute('x'), y: +use.getAttribute('y'), i: +use.dataset.i}));
    places.sort((a, b) => a.x - b.x || a.y - b.y);
    const visible = () => places.filter((p) => !p.use.parentNode.classList.contains('off') && !p.use.classList.contains('dim'));
    let current = null;
    const select = (p) => {
      if (p === current) return;
      if (current) current.use.classList.remove('on');
      current = p;
      readout.textContent = '';
      if (!p) return;
      p.use.classList.add('on');
      const value = byNumber[p.i].cells[column].textContent;
      readout.textContent = `${names[p.i]}: ${value}${/\d/.test(value) ? ' dB' : ''}`;
    };
    const nearest = (event) => {
      const box = chart.getBoundingClientRect();
      const scale = chart.viewBox.baseVal.width / box.width;
      const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
      let best = null, least = 30 * 30;
      for (const p of visible()) {
        const d = (p.x - x) ** 2 + (p.y - y) ** 2;
        if (d < least) { least = d; best = p; }
      }
      return best;
    };
    chart.setAttribute('tabindex', '0');
    // Safari's clicks do not say what made them.
    let byTouch = false;
    chart.addEventListener('pointerdown', (event) => { byTouch = event.pointerType === 'touch'; });
    chart.addEventListener('pointermove', (event) => select(nearest(event)));
    chart.addEventListener('click', (event) => {
      const p = nearest(event);
      select(p);
      // A finger first asks what it touches.
      if (p && !byTouch) open(p.i);
    });
    chart.addEventListener('keydown', (event) => {
      const list = visible();
      const at = list.indexOf(current);
      const to = {ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: list.length - 1}[event.key];
      if (to !== undefined && list.length) {
        select(list[Math.min(Math.max(to, 0), list.length - 1)]);
        event.preventDefault();
      } else if (event.key === 'Enter' && current) {
        open(current.i);
      }
    });
  });

  // ---- Charts of a layer
  const values = (list) => list ? list.split(' ').map((v) => v.replace(/^\./, '0.')) : [];
  const range = (d, i) => {
    const from = i * d.span, to = Math.min(from + +d.span, +d.n) - 1;
    return to > from ? `channels ${from}–${to}` : `channel ${from}`;
  };
  const between = (a, b) => a === b ? a : `${a} to ${b}`;
  const db = (v) => v === 'inf' ? 'exact' : v + ' dB';
  // What point i of a chart says; the lists are split once.
  const tellers = {
    histogram: (d) => {
      const counts = values(d.counts);
      return {count: counts.length, tell: (i) => {
        const code = +d.first + Math.floor(i / d.per), weights = counts[i] === '1' ? 'weight' : 'weights';
        return `code ${code}${d.per > 1 ? `, part ${i % d.per + 1} of ${d.per}` : ''}: ${counts[i]} ${weights}`;
      }};
    },
    channels: (d) => {
      const a = values(d.least), b = values(d.largest), s = values(d.sqnr_db);
      return {count: b.length, tell: (i) => `${range(d, i)}: scale ${between(a[i], b[i])}, ${db(s[i])}`};
    },
    inputs: (d) => {
      const a = values(d.before), b = values(d.after);
      return {count: a.length, tell: (i) => `${range(d, i)}: ${a[i]}${b.length ? ` before, ${b[i]} after` : ''}`};
    },
    smoothing: (d) => {
      const a = values(d.least), b = values(d.largest);
      return {count: b.length, tell: (i) => `${range(d, i)}: ${between(a[i], b[i])}`};
    },
  };
  // A mouse tells while it is over the chart, a finger leaves the number that it touched.
  const onPointer = (element, tell, end) => {
    for (const type of ['pointerdown', 'pointermove']) element.addEventListener(type, tell);
    element.addEventListener('pointerleave', (event) => { if (event.pointerType !== 'touch') end(); });
  };
  const follow = (figure) => {
    const svg = one('svg', figure), img = one('img', figure);
    const readout = one('.readout', figure);
    if (!readout) return;
    if (svg) {
      const {count, tell} = tellers[svg.getAttribute('class')](svg.dataset);
      if (!count) return;
      const plots = all('.plot', svg);
      const get = (plot, name) => +plot.getAttribute(name);
      const left = get(plots[0], 'x'), width = get(plots[0], 'width');
      const last = plots[plots.length - 1];
      const cursor = document.createElementNS(svg.namespaceURI, 'path');
      cursor.setAttribute('class', 'cursor');
      let current = -1;
      const select = (i) => {
        current = i;
        readout.textContent = i < 0 ? '' : tell(i);
        if (i < 0) { cursor.remove(); return; }
        cursor.setAttribute('d', `M${left + width * (i + .5) / count} ${get(plots[0], 'y')}V${get(last, 'y') + get(last, 'height')}`);
        svg.append(cursor);
      };
      const clamp = (i) => Math.min(Math.max(i, 0), count - 1);
      svg.setAttribute('tabindex', '0');
      onPointer(svg, (event) => {
        const box = plots[0].getBoundingClientRect();
        select(clamp(Math.floor((event.clientX - box.left) / box.width * count)));
      }, () => select(-1));
      svg.addEventListener('keydown', (event) => {
        const to = {ArrowRight: current + 1, ArrowLeft: current - 1, Home: 0, End: count - 1}[event.key];
        if (to === undefined) return;
        select(clamp(to));
        event.preventDefault();
      });
    } else if (img) {
      // A PNG without compression: the first pixel is byte 49, a row has one byte before it.
      const d = figure.dataset, columns = +d.columns, lines = +d.rows;
      const bytes = atob(img.src.slice(img.src.indexOf(',') + 1));
      const span = (i, size, n) => `${i * size}–${Math.min((i + 1) * size, n) - 1}`;
      let x = -1, y = 0;
      const select = () => {
        const level = bytes.charCodeAt(49 + y * (columns + 1) + x);
        const rms = level && d.least * (d.largest / d.least) ** ((level - 1) / 254);
        readout.textContent = `outputs ${span(y, +d.rs, +d.n)}, inputs ${span(x, +d.cs, +d.m)}: ≈ ${rms.toPrecision(2)}`;
      };
      const clamp = (i, n) => Math.min(Math.max(i, 0), n - 1);
      img.tabIndex = 0;
      onPointer(img, (event) => {
        const box = img.getBoundingClientRect();
        x = clamp(Math.floor((event.clientX - box.left) / box.width * columns), columns);
        y = clamp(Math.floor((event.clientY - box.top) / box.height * lines), lines);
        select();
      }, () => { readout.textContent = ''; });
      img.addEventListener('keydown', (event) => {
        const move = {ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1]}[event.key];
        if (!move) return;
        x = clamp(x + move[0], columns);
        y = clamp(y + move[1], lines);
        select();
        event.preventDefault();
      });
    }
  };
  // Of closed layers nothing is prepared until they are opened.
  all('#worst details').forEach((details) => {
    const prepare = () => {
      if (!details.open || details.ready) return;
      details.ready = true;
      all('figure', details).forEach(follow);
    };
    details.addEventListener('toggle', prepare);
    prepare();
  });
  // On paper there is nothing to open.
  let closed = [];
  addEventListener('beforeprint', () => {
    closed = all('#worst details:not([open])');
    closed.forEach((details) => { details.open = true; });
  });
  addEventListener('afterprint', () => closed.forEach((details) => { details.open = false; }));
})();
