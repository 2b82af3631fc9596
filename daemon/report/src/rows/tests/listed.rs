use super::Listed;
use crate::output::table::Style;
use crate::rows::{Answer, BackendRow, Backends, Rendered};
use crate::time::Time;

const NOW: Time = Time(1_764_000_260_000);

fn backends(number: usize) -> Backends {
    let row = |n: usize| {
        serde_json::from_value::<BackendRow>(serde_json::json!({
            "address": format!("10.1.{n}.255:{}/TCP", n * n * n), "service": "shop/\u{e9}\"web", "port": null,
            "state": "Active", "weight": 1, "node": null, "zone": "a", "choice": "Selected", "origin": null,
            "reason": null, "check": "Passed", "checked": "2025-11-24T16:04:17.000Z", "latency": 0.0012,
        }))
    };
    Backends { backends: (1..=number).map(|n| row(n).unwrap()).collect() }
}

/// Rows that are computed one by one look like the same rows as a whole, in text and in JSON.
#[test]
fn a_list_has_the_form_of_an_answer() {
    for number in [0, 1, 2, 40] {
        let answer = backends(number);
        let rows = answer.backends.clone();
        let listed = Listed { now: NOW, for_each: Box::new(move |each| rows.iter().cloned().for_each(each)) };
        assert_eq!(listed.json().unwrap(), serde_json::to_string(&answer).unwrap() + "\n");
        let styles = [None, Some(40), Some(80)].map(|width| [false, true].map(|wide| (width, wide)));
        for (width, wide) in styles.into_iter().flatten() {
            let style = Style { width, wide, ..Style::default() };
            assert_eq!(listed.text(&style), answer.text(NOW, &style), "{number} {style:?}");
        }
    }
}
