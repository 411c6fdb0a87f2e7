//! Templates that try to take time or memory are refused within bounds of both.
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use temper_checkpoint::chat_template::{
    ChatTemplate, Conversation, MAX_TEMPLATE_BYTES, TemplateError,
};

/// Counts the bytes that are allocated now and the most there were.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Peaks are of the whole process, so measurements take turns.
static TURN: Mutex<()> = Mutex::new(());

// SAFETY: every call is passed on to the system's allocator unchanged; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout` is the one that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `pointer` came from `alloc` above with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MEMORY: usize = 160 << 20;
/// Debug builds of the engine are some ten times slower than release builds.
const TIME: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 2 });

fn render(source: &str) -> (Result<String, TemplateError>, usize, Duration) {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let messages = [json!({"role": "user", "content": "hi"})];
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let result = ChatTemplate::new(source, Map::new()).and_then(|template| {
        template.render(&Conversation {
            messages: &messages,
            ..Conversation::default()
        })
    });
    let peak = PEAK.load(Ordering::Relaxed).saturating_sub(before);
    (result, peak, start.elapsed())
}

/// Renders in bounds, and gives what came of it.
fn bounded(source: &str) -> Result<String, TemplateError> {
    let (result, peak, time) = render(source);
    let shown: String = source.chars().take(120).collect();
    assert!(peak < MEMORY, "{shown}: {} MiB", peak >> 20);
    assert!(time < TIME, "{shown}: {time:?}");
    result
}

#[test]
fn bombs_are_refused() {
    let bombs = [
        "{{ 'x' * 10**9 }}",
        "{{ 'x' * 1000000000 }}",
        "{% set x = 'x' * 50000000 %}{{ x | length }}",
        "{{ [1] * 100000000 }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' * 40 }}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | list }}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s.replace('x', 'xx') %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(60) %}{% set ns.s = ns.s | replace('x', 'xx') %}{% endfor %}",
        "{{ ('x' * 1000000).replace('', 'y' * 1000) }}",
        "{{ ('x' * 1000000) | replace('', 'y' * 1000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:>1000000000}'.format('x') }}",
        "{{ 'x' | center(1000000000) }}",
        "{{ 'x'.center(1000000000) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x' | indent(1000000000, true) }}",
        "{{ ('\\n' * 1000000) | indent(1000) }}",
        "{{ range(10**8) | list }}",
        "{{ range(99999999) | batch(1) | list }}",
        "{{ range(99999999) | slice(3) | list }}",
        "{{ range(99999999) | sum }}",
        "{{ range(99999999) | join(',') }}",
        "{{ range(99999999) | map('string') | list }}",
        "{{ (range(99999) | list) * 1000 }}",
        "{{ [1] | batch(1000000000, 'x') | list }}",
        "{{ ('a' * 10000000).split('') }}",
        "{{ ('a ' * 8000000).split() | length }}",
        "{{ ('\\n' * 12000000).splitlines() | length }}",
        "{{ (('x' * 1000000) ~ ',').join(range(99999)) }}",
        "{{ ([range(9999) | list] * 9999) | tojson }}",
        "{{ ([range(9999) | list] * 9999) | tojson(indent=60) }}",
        "{{ ([range(9999) | list] * 9999) | string }}",
        "{{ [range(9999) | list] * 9999 }}",
        "{{ ([range(9999) | list] * 9999) | pprint }}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(s='') %}{% for i in range(99999) %}{% set ns.s = ns.s ~ 'xxxxxxxxxxxxxxxx' %}{% endfor %}",
        "{% set s = 'x' * 400000 %}{% for i in range(99999) %}{% if 'q' in s %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 400000 %}{% for i in range(99999) %}{% if s.find('q') > 0 %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 400000 %}{% for i in range(99999) %}{% if s.startswith('q') %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 400000 %}{% set t = 'x' * 400000 %}{% for i in range(99999) %}{% if s == t %}{% endif %}{% endfor %}",
        "{% set s = 'é' * 30000 %}{% for i in range(99999) %}{% if s[29999] == 'q' %}{% endif %}{% endfor %}",
        "{% set s = 'é' * 30000 %}{% for i in range(99999) %}{% if s[-2:] == 'q' %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 400000 %}{% for i in range(99999) %}{% if s | upper %}{% endif %}{% endfor %}",
        "{% set s = 'x' * 400000 %}{% for i in range(99999) %}{% if {s: 1}[s] %}{% endif %}{% endfor %}",
        "{% set l = range(99999) | list %}{% for i in range(99999) %}{% if -1 in l %}{% endif %}{% endfor %}",
        "{% set l = range(99999) | list %}{% for i in range(99999) %}{% if l == l[:-1] + [0] %}{% endif %}{% endfor %}",
        "{% set l = range(99999) | list %}{% for i in range(99999) %}{% if l | sort | first %}{% endif %}{% endfor %}",
        "{% set l = range(99999) | list %}{% for i in range(99999) %}{% if l | unique | list | length %}{% endif %}{% endfor %}",
        "{% set l = range(99999) | list %}{% for i in range(99999) %}{% if l.count(-1) %}{% endif %}{% endfor %}",
        "{% set s = ' ' * 400000 %}{% for i in range(99999) %}{% if s.strip() %}{% endif %}{% endfor %}",
        "{% set s = ' ' * 400000 %}{% for i in range(99999) %}{% if s | trim %}{% endif %}{% endfor %}",
        "{% for i in range(99999) %}{{ strftime_now('%Y' * 100000) }}{% endfor %}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ (2 ** 100) ** 1000 }}",
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ raise_exception('x' * 100000000) }}",
    ];
    for bomb in bombs {
        assert!(bounded(bomb).is_err(), "{bomb}");
    }
}

#[test]
fn deep_values_do_not_overflow_the_stack() {
    let deep = [
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(1200) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}",
        "{% set ns = namespace(x={}) %}{% for i in range(1200) %}{% set ns.x = {'a': ns.x} %}{% endfor %}{{ ns.x ~ '' }}",
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(1200) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(1200) %}{% set ns.x = ns.x | map('upper') %}{% endfor %}{{ ns.x | list }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(1200) %}{% set ns.x = ns.x + [1] %}{% endfor %}{{ ns.x | length }}",
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(170) %}{% set ns.x = [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ns.x]]]]]]]]]]]]]]]]]]]]]]]]]]]]]] %}{% set ns.y = [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ns.y]]]]]]]]]]]]]]]]]]]]]]]]]]]]]] %}{% endfor %}{{ ns.x == ns.y }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(340) %}{% set ns.x = [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ns.x]]]]]]]]]]]]]]]]]]]]]]]]]]]]]] %}{% endfor %}{{ ns.x ~ '' }}",
        "{% set ns = namespace(x=[]) %}{% for i in range(340) %}{% set ns.x = [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[ns.x]]]]]]]]]]]]]]]]]]]]]]]]]]]]]] %}{% endfor %}{{ {ns.x: 1} }}",
    ];
    for source in deep {
        let _ = bounded(source);
    }
    let brackets = |n: usize| format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n));
    let lists = |n: usize| format!("{{{{ {}1{} }}}}", "[".repeat(n), "]".repeat(n));
    let blocks = |n: usize| format!("{}{}", "{% if 1 %}".repeat(n), "{% endif %}".repeat(n));
    for n in [100, 1_000] {
        let _ = bounded(&brackets(n));
        let _ = bounded(&lists(n));
        let _ = bounded(&blocks(n));
        let _ = bounded(&format!("{{{{ {}1 }}}}", "not ".repeat(n)));
        let _ = bounded(&format!("{{{{ 1{} }}}}", " + 1".repeat(n)));
        let _ = bounded(&format!("{{{{ x{} }}}}", ".a".repeat(n)));
        let _ = bounded(&format!("{{{{ x{} }}}}", "|string".repeat(n)));
    }
    let _ = bounded(&format!("{{{{ {}1 }}}}", "not ".repeat(16_000)));
    let _ = bounded(&"{{ [".repeat(12_000));
    let _ = bounded(&format!("{{{{ {}", "[".repeat(60_000)));
}

#[test]
fn there_is_nothing_behind_the_values() {
    for source in [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ namespace.__init__.__globals__['os'] }}",
        "{{ messages | attr('__class__') | attr('__base__') }}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% include '/etc/passwd' %}",
        "{% import '/etc/passwd' as x %}",
        "{% extends '/etc/passwd' %}",
        "{{ debug() }}",
    ] {
        let text = bounded(source).unwrap_or_default();
        assert!(text.trim().is_empty() || text == "None", "{source}: {text}");
    }
}

#[test]
fn a_template_says_why_it_refuses() {
    let error = bounded("{{ raise_exception('no ' ~ messages[0].role) }}").unwrap_err();
    assert!(matches!(error, TemplateError::Raised(message) if message == "no user"));
    let error =
        bounded("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}")
            .unwrap_err();
    assert!(matches!(error, TemplateError::OutOfFuel { .. }), "{error}");
    let error = ChatTemplate::new("{% if %}", Map::<String, Value>::new()).unwrap_err();
    assert!(matches!(error, TemplateError::Syntax(_)));
    let long = "x".repeat(MAX_TEMPLATE_BYTES + 1);
    let error = ChatTemplate::new(&long, Map::new()).unwrap_err();
    assert!(matches!(error, TemplateError::TooLarge { .. }));
}
