//! What a person sees and does on the page.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use crate::browser::{Browser, Daemon};
use crate::sandbox;

/// Runs a test of the page in a sandbox.
fn run<F: Future<Output = ()>>(name: &str, test: impl FnOnce() -> F) {
    sandbox::run(name, |_| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(test());
    });
}

/// A service file with this number of services; each 37th has no backend.
fn services(number: usize) -> String {
    let mut text = String::new();
    for index in 0..number {
        let (high, low) = (index / 250, index % 250 + 1);
        let backends = if index % 37 == 36 { String::new() } else { format!("\"10.1.{high}.{low}:8080\"") };
        writeln!(
            text,
            "[[service]]\nname = \"shop/web-{index:05}\"\nfrontends = [\"10.96.{high}.{low}:80\"]\nbackends = [{backends}]\n"
        )
        .expect("a string");
    }
    text
}

fn shop(backends: &str) -> String {
    format!("[[service]]\nname = \"shop/web\"\nfrontends = [\"10.96.7.7:80\"]\nbackends = [{backends}]\n")
}

const TWO: &str = "\"10.1.0.1:8080\", \"10.1.0.2:8080\"";

#[test]
fn a_service_that_loses_its_backends_is_shown_within_a_second() {
    run("views::a_service_that_loses_its_backends_is_shown_within_a_second", || async {
        let daemon = Daemon::start(&services(30));
        daemon.write("shop.toml", &shop(TWO));
        let browser = Browser::start().await;
        browser.open("").await;
        browser.until("document.querySelector('#list')?.innerText.includes('shop/web')").await;
        browser.screenshot("services").await;
        daemon.write("shop.toml", &shop(""));
        let time = browser.until("document.querySelector('#problems').innerText.includes('shop/web\\n')").await;
        // The page gets the list of problems every two seconds, and the row at once.
        assert!(time < Duration::from_secs(30), "{time:?}");
        let row = browser.text(".item .row").await;
        assert!(row.contains("shop/web") && row.contains("NoBackends"), "{row}");
        // The maps in memory are the other problem.
        assert_eq!(browser.text("#ready").await, "2 critical", "ready, and yet not well");
        let timeline = browser.text("#records").await;
        assert!(timeline.contains("−10.1.0.1:8080"), "{timeline}");
        browser.screenshot("no-backends").await;
        browser.close().await;
    });
}

#[test]
fn the_table_is_filtered_and_an_address_traced() {
    run("views::the_table_is_filtered_and_an_address_traced", || async {
        let _daemon = Daemon::start(&services(200));
        let browser = Browser::start().await;
        browser.open("").await;
        browser.until("document.querySelectorAll('.item').length > 5").await;
        browser.search("web-00150").await;
        browser.until("document.querySelectorAll('.item').length === 1").await;
        assert!(browser.text(".item").await.contains("10.96.0.151:80"));
        // An address in a link is traced.
        browser.open("#trace/10.96.0.151:80?from=pod").await;
        browser.until("document.querySelector('#trace .verdict')?.innerText.includes('Forwarded')").await;
        let trace = browser.text("#trace").await;
        assert!(trace.contains("shop/web-00150") && trace.contains("10.1.0.151:8080"), "{trace}");
        browser.screenshot("trace").await;
        browser.press("Escape").await;
        browser.until("document.querySelector('#trace').hidden").await;
        // A service in a link is open, and the problems alone after `p`.
        browser.open("#service/shop/web-00150").await;
        browser.until("document.querySelector('.detail')?.innerText.includes('10.1.0.151:8080')").await;
        browser.press("p").await;
        browser.until("document.querySelector('#columns').hidden").await;
        browser.close().await;
    });
}

#[test]
fn details_are_readable_on_a_phone() {
    run("views::details_are_readable_on_a_phone", || async {
        let _daemon = Daemon::start(&shop(TWO));
        let browser = Browser::start().await;
        browser.screen(400, 800).await;
        browser.open("#service/shop/web").await;
        browser.until("document.querySelector('.detail')?.innerText.includes('10.1.0.2:8080')").await;
        // Only a path may need two lines.
        let one_line =
            "[...document.querySelectorAll('.detail td:not(.origin)')].every((cell) => cell.offsetHeight < 30)";
        browser.until(one_line).await;
        browser.value("document.querySelector('.detail').scrollIntoView()").await;
        browser.until("document.documentElement.scrollWidth <= innerWidth").await;
        browser.until("document.querySelector('.item .row')?.innerText.includes('10.96.7.7:80')").await;
        browser.screenshot("phone").await;
        browser.open("#trace/10.96.7.7:80").await;
        browser.until("document.querySelector('#trace td')").await;
        browser
            .until(
                "[...document.querySelectorAll('#trace td:first-child')].every((cell) => { \
                 const text = document.createRange(); text.selectNodeContents(cell); \
                 return text.getClientRects().length === 1; })",
            )
            .await;
        browser.close().await;
    });
}

#[test]
fn a_display_on_a_wall_is_one_screen_with_all_that_counts() {
    run("views::a_display_on_a_wall_is_one_screen_with_all_that_counts", || async {
        let empty = |i: usize| {
            format!("[[service]]\nname = \"shop/web-{i}\"\nfrontends = [\"10.96.7.{i}:80\"]\nbackends = []\n")
        };
        let _daemon = Daemon::start(&(1..20).map(empty).collect::<String>());
        let browser = Browser::start().await;
        browser.open("?kiosk").await;
        browser.until("document.querySelector('#problems h2')?.innerText.startsWith('20')").await;
        for (width, height) in [(1_400, 900), (1_920, 1_080)] {
            browser.screen(width, height).await;
            browser
                .until("document.querySelector('#tiles button')?.getBoundingClientRect().bottom < innerHeight")
                .await;
            for panel in ["#wall .verdict", "#wall .clock", "#wall .rate", "#wall .last", ".problem", "#records li"] {
                browser
                    .until(&format!("document.querySelector('{panel}')?.getBoundingClientRect().bottom < innerHeight"))
                    .await;
            }
            browser.until("document.documentElement.scrollHeight <= innerHeight").await;
            browser
                .until("document.querySelector('#timeline').getBoundingClientRect().bottom > innerHeight - 30")
                .await;
            browser.until("document.querySelector('#problems').innerText.includes(' more')").await;
            browser.screenshot(&format!("wall-{width}")).await;
        }
        assert_eq!(browser.text("#wall .verdict").await, "20 critical");
        browser.close().await;
    });
}

#[test]
fn a_killed_daemon_is_named_and_the_page_continues_after_it() {
    run("views::a_killed_daemon_is_named_and_the_page_continues_after_it", || async {
        let mut daemon = Daemon::start(&shop(TWO));
        let browser = Browser::start().await;
        browser.open("").await;
        browser.until("document.querySelector('#stream').innerText.startsWith('live')").await;
        daemon.kill();
        let time = browser.until("document.querySelector('header.stale')").await;
        assert!(time < Duration::from_secs(30), "{time:?}");
        let says = browser.text("#stream").await;
        assert!(says.contains("traffic continues"), "{says}");
        assert!(browser.text("#list").await.contains("shop/web"), "what was known stays visible");
        assert_eq!(browser.text("#ready").await, "NO ANSWER");
        // In the colour of notes: whether it is still so is not known.
        let grey = "getComputedStyle(document.querySelector('#about')).color";
        browser.until(&format!("getComputedStyle(document.querySelector('.dot')).backgroundColor === {grey}")).await;
        // Only what can be clicked has a colour.
        let coloured = browser
            .value(&format!(
                "[...document.querySelectorAll('main *')].filter((it) => !it.closest('a, button') && \
                 [...it.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && \
                 getComputedStyle(it).color !== {grey}).map((it) => it.outerHTML)"
            ))
            .await;
        assert_eq!(coloured, serde_json::json!([]));
        browser.screenshot("daemon-killed").await;
        daemon.write("services.toml", &shop(""));
        daemon.restart();
        browser.until("document.querySelector('#stream').innerText.startsWith('live')").await;
        browser.until("document.querySelector('.item .row')?.innerText.includes('NoBackends')").await;
        browser.close().await;
    });
}

#[test]
fn a_service_has_its_own_history_and_the_command_that_drains_a_backend() {
    run("views::a_service_has_its_own_history_and_the_command_that_drains_a_backend", || async {
        let daemon = Daemon::start(&services(1));
        let browser = Browser::start().await;
        daemon.write("shop.toml", &shop(TWO));
        browser.open("#service/shop/web").await;
        browser.until("document.querySelector('#records').innerText.includes('+10.1.0.2:8080')").await;
        // A new page gets the latest 200 records of all services.
        daemon.write("services.toml", &services(300));
        browser.until("document.querySelector('#tiles').innerText.includes('301')").await;
        browser.open("about:blank").await;
        browser.client.goto(&format!("{}#service/shop/web", crate::browser::PAGE)).await.expect("the page");
        browser.until("document.querySelector('#records').innerText.includes('+10.1.0.2:8080')").await;
        browser.until("document.querySelector('[title=\"Copy: nodelb drain shop/web 10.1.0.2:8080\"]')").await;
        browser.close().await;
    });
}

#[test]
fn a_service_with_a_failed_backend_is_degraded() {
    run("views::a_service_with_a_failed_backend_is_degraded", || async {
        let check = "health-check = { type = \"tcp\", interval = \"1s\" }\n";
        let daemon = Daemon::start(&services(1));
        let browser = Browser::start().await;
        // The browser's driver is the backend that works.
        daemon.write("shop.toml", &(shop("\"127.0.0.1:9515\", \"127.0.0.1:1\"") + check));
        browser.open("").await;
        browser.until("document.querySelector('#list')?.innerText.includes('Degraded')").await;
        assert!(browser.text(".item .row").await.contains("1/2"));
        browser.screenshot("degraded").await;
        browser.close().await;
    });
}

#[test]
fn services_that_share_a_problem_are_as_critical_as_it_is() {
    run("views::services_that_share_a_problem_are_as_critical_as_it_is", || async {
        let dead = |i: usize| {
            format!(
                "[[service]]\nname = \"shop/web-{i}\"\nfrontends = [\"10.96.7.{i}:80\"]\nbackends = [\"127.0.0.1:1\"]\n\
                 health-check = {{ type = \"tcp\", interval = \"1s\" }}\n"
            )
        };
        let _daemon = Daemon::start(&(services(5) + &(1..=3).map(dead).collect::<String>()));
        let browser = Browser::start().await;
        browser.open("").await;
        browser.until("document.querySelector('#problems').innerText.includes('3 services: ')").await;
        browser.until("document.querySelector('#tiles').innerText.includes('3 critical')").await;
        assert!(browser.text(".item .row").await.contains("shop/web-1"));
        browser.close().await;
    });
}

/// Lets a test send events to the page, and answer for `/connections`: the maps of the daemon are in memory, so that it has no
/// connection.
const STAGE: &str = "
    window.sources = [];
    window.EventSource = class extends EventSource {
        constructor(...all) { super(...all); window.sources.push(this); }
        addEventListener(name, handle) {
            super.addEventListener(name, (event) => name === 'rates' && event.isTrusted ? undefined : handle(event));
        }
    };
    const ask = window.fetch;
    window.fetch = (url, ...rest) => window.connections && String(url).startsWith('/connections?service=shop%2Fweb')
        ? Promise.resolve(new Response(JSON.stringify(window.connections))) : ask(url, ...rest);";

#[test]
fn a_service_has_its_checks_and_its_connections() {
    run("views::a_service_has_its_checks_and_its_connections", || async {
        let check = "health-check = { type = \"tcp\", interval = \"1s\" }\n";
        // The browser's driver is the backend that works.
        let _daemon = Daemon::start(&(shop("\"127.0.0.1:9515\", \"127.0.0.1:1\"") + check));
        let browser = Browser::start().await;
        browser.begin_with(STAGE).await;
        browser.open("#service/shop/web").await;
        let detail = "document.querySelector('.detail')?.innerText";
        for result in ["Passed", "Refused"] {
            browser.until(&format!("/{result} \\d+s ago, took [0-9.]+ (µs|ms)/.test({detail})")).await;
        }
        browser.until(&format!("{detail}.includes('No client outside the node is connected.')")).await;
        // Later checks and connections come without an event.
        let time = "document.querySelector('.detail .check .age').dataset.time";
        let first = browser.value(time).await;
        browser
            .value(
                "window.connections = { connections: Array.from({ length: 9 }, (_, index) => ({ \
                 client: `203.0.113.9:${40000 + index}`, frontend: '10.96.7.7:80/TCP', backend: '127.0.0.1:9515/TCP', \
                 state: 'established', first_packet: '2026-01-01T00:00:00.000Z', last_packet: '2026-01-01T00:00:00.000Z' })), \
                 listed: { connections: 9, complete: true } }",
            )
            .await;
        browser.until(&format!("{time} !== {first}")).await;
        browser.until(&format!("{detail}.includes('9 connections of clients outside the node, such as')")).await;
        let text = browser.text(".detail").await;
        assert!(text.contains("203.0.113.9:40007") && !text.contains("203.0.113.9:40008"), "{text}");
        browser.until("document.querySelector('[title=\"Copy: nodelb connections shop/web\"]')").await;
        browser.screenshot("checks").await;
        browser.close().await;
    });
}

#[test]
fn the_node_and_each_service_in_use_have_a_line_of_their_rate() {
    run("views::the_node_and_each_service_in_use_have_a_line_of_their_rate", || async {
        let _daemon = Daemon::start(&(services(3) + &shop(TWO)));
        let browser = Browser::start().await;
        browser.begin_with(STAGE).await;
        browser.open("#service/shop/web").await;
        browser.until("document.querySelectorAll('.item').length === 4").await;
        assert_eq!(browser.value("document.querySelectorAll('.line').length").await, 0, "no connection, no line");
        let rates = "window.sources.at(-1).dispatchEvent(new MessageEvent('rates', { data: JSON.stringify({ \
             is_counting: true, rates: [{ service: 'shop/web', per_second: 12, refused: 2, outside: 3 }] }) }))";
        // One point is no line, and the next one is two seconds later.
        browser
            .until(&format!("{rates} && /M.*L/.test(document.querySelector('#rate path')?.getAttribute('d'))"))
            .await;
        assert_eq!(
            browser.text("#rate").await.split_whitespace().collect::<Vec<_>>().join(" "),
            "12 connections/s 2.0 refused/s"
        );
        browser.until("document.querySelectorAll('.row .line').length === 1").await;
        browser.until("document.querySelector('.selected .row .line')").await;
        let expected = "12 connections/s, 3.0 of them from clients outside the node, 2.0 refused/s, at most 12 in the last ten minutes";
        browser.until(&format!("document.querySelector('.detail .rate').innerText === {expected:?}")).await;
        browser.close().await;
    });
}

#[test]
fn the_page_fits_three_screens_in_light_and_dark_and_loads_nothing_from_elsewhere() {
    run("views::the_page_fits_three_screens_in_light_and_dark_and_loads_nothing_from_elsewhere", || async {
        let _daemon = Daemon::start(&(services(40) + &shop(TWO)));
        let browser = Browser::start().await;
        for scheme in ["light", "dark"] {
            browser.prefer(scheme).await;
            for (width, height) in [(1_400, 900), (800, 600), (400, 800)] {
                browser.screen(width, height).await;
                browser.open("#service/shop/web").await;
                browser.until("document.querySelector('.detail')?.innerText.includes('10.1.0.2:8080')").await;
                browser.until("document.documentElement.scrollWidth <= innerWidth").await;
                let is_whole = "(cell) => cell.scrollWidth <= cell.clientWidth";
                browser
                    .until(&format!("[...document.querySelectorAll('.item .row > :nth-child(3)')].every({is_whole})"))
                    .await;
                browser.screenshot(&format!("{scheme}-{width}")).await;
            }
        }
        let elsewhere = "performance.getEntriesByType('resource').map((it) => it.name).filter((it) => !it.startsWith(location.origin))";
        assert_eq!(browser.value(elsewhere).await, serde_json::json!([]));
        browser.close().await;
    });
}

#[test]
fn names_with_markup_are_text() {
    run("views::names_with_markup_are_text", || async {
        let hostile = "<img src=x onerror=document.title='owned'>\u{202e}evil";
        let long = "a".repeat(240);
        let daemon = Daemon::start(&services(3));
        daemon.write(&format!("{hostile}.toml"), &shop(TWO));
        daemon.write(&format!("{long}.toml"), "this is <b>no</b> TOML");
        let browser = Browser::start().await;
        browser.open("#service/shop/web").await;
        browser.until("document.querySelector('.detail')?.innerText.includes('10.1.0.1:8080')").await;
        browser.until("document.querySelector('#footer').innerText.includes('onerror')").await;
        let body = browser.text("body").await;
        assert!(body.contains("<img src=x onerror=document.title='owned'>\u{fffd}evil"), "{body}");
        assert!(body.contains(&long), "{body}");
        let made = browser.value("document.querySelectorAll('main img, main b').length").await;
        assert_eq!(made, Value::from(0));
        assert_ne!(browser.value("document.title").await, "owned");
        let wide = browser.value("document.documentElement.scrollWidth <= innerWidth").await;
        assert_eq!(wide, Value::Bool(true), "long names do not widen the page");
        browser.close().await;
    });
}

#[test]
fn five_thousand_services_are_drawn_as_few_elements() {
    run("views::five_thousand_services_are_drawn_as_few_elements", || async {
        let _daemon = Daemon::start(&services(5_000));
        let browser = Browser::start().await;
        browser.open("").await;
        browser.until("document.querySelector('#tiles').innerText.includes('5000')").await;
        browser.open("about:blank").await;
        browser.client.goto(crate::browser::PAGE).await.expect("the page");
        browser.until("document.querySelectorAll('.item').length > 5").await;
        // Since the navigation: the first content, and the first frame with services, in milliseconds.
        let paint = browser.value("performance.getEntriesByType('paint').map(entry => entry.startTime).at(-1)").await;
        let rows = browser.value("performance.getEntriesByName('first-services')[0]?.startTime").await;
        // Draws the table at a hundred positions; the longest time is that of a stall.
        let longest = browser
            .value(
                "(() => { const viewport = document.getElementById('viewport'); let longest = 0; \
                 for (let i = 0; i < 100; i += 1) { const start = performance.now(); \
                 viewport.scrollTop = i * 1300; viewport.dispatchEvent(new Event('scroll')); \
                 viewport.offsetHeight; longest = Math.max(longest, performance.now() - start); } return longest; })()",
            )
            .await;
        let elements = browser.value("document.querySelectorAll('.item').length").await;
        // Limits for a busy machine; the figures are in docs/benchmarks.md.
        assert!(paint.as_f64().is_some_and(|time| time < 10_000.0), "{paint}");
        assert!(rows.as_f64().is_some_and(|time| time < 10_000.0), "{rows}");
        assert!(longest.as_f64().is_some_and(|time| time < 1_000.0), "{longest}");
        assert!(elements.as_u64().is_some_and(|number| number < 100), "{elements}");
        let mut report = std::io::stderr();
        std::io::Write::write_fmt(
            &mut report,
            format_args!(
                "5,000 services: first paint {paint} ms, with services {rows} ms, longest scroll {longest} ms, \
                 {elements} elements\n"
            ),
        )
        .expect("the output");
        browser.close().await;
    });
}
