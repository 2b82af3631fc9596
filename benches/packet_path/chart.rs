//! The chart of docs/benchmarks.md: the CPU time of a packet, a connection or a transfer at the node, as a share of what
//! it takes with kube-proxy's nftables rules.

use std::fmt::Write as _;
use std::fs;

/// Pixels of one row, of one bar, of the text at the left, and of 100 % at the right of it.
const ROW: usize = 50;
const BAR: usize = 14;
const TEXT: usize = 280;
const WHOLE: f64 = 380.0;
/// Pixels above the first row, and of the whole width.
const TOP: usize = 64;
const WIDTH: usize = 820;

/// Colours for light and for dark pages.
const STYLE: &str = "text { font: 13px system-ui, sans-serif; fill: #1f2328 } .small { font-size: 12px; fill: #59636e } \
    .plain { fill: #aab4be } .nodelb { fill: #1f6feb } .whole { stroke: #59636e; stroke-dasharray: 4 3 } \
    @media (prefers-color-scheme: dark) { text { fill: #f0f6fc } .small { fill: #9198a1 } .plain { fill: #656c76 } \
    .nodelb { fill: #58a6ff } .whole { stroke: #9198a1 } }";

/// A row: what is done, and the costs of plain forwarding and of nodelb as shares of those of nftables.
struct Row {
    what: String,
    plain: f64,
    nodelb: f64,
}

/// The rows in the order in which they were measured.
#[derive(Default)]
pub(crate) struct Chart(Vec<Row>);

impl Chart {
    /// Takes the costs of plain forwarding, nodelb and nftables, in any unit.
    pub(crate) fn add(&mut self, what: String, [plain, nodelb, nftables]: [f64; 3]) {
        self.0.push(Row { what, plain: plain / nftables, nodelb: nodelb / nftables });
    }

    /// The range of the costs of nodelb, as the sentence for the top of docs/benchmarks.md.
    pub(crate) fn summary(&self) -> String {
        let of = |what: &str| {
            let shares = self.0.iter().filter(|row| row.what.starts_with(what)).map(|row| row.nodelb * 100.0);
            let (least, most) =
                shares.fold((f64::MAX, 0.0), |(least, most), share| (share.min(least), share.max(most)));
            let [least, most] = [least, most].map(|share: f64| format!("{share:.0} %"));
            if least == most { most } else { format!("{least} to {most}") }
        };
        format!(
            "Summary: At a node that takes connections from outside, a packet of a known connection costs {} of what it costs \
             with kube-proxy's nftables rules, a new connection {}, and a TCP connection with one request, with client and \
             server, {}.",
            of("Known connection"),
            of("New connection"),
            of("TCP connection"),
        )
    }

    /// Writes docs/benchmarks.svg.
    pub(crate) fn write(&self) {
        fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.svg"), self.svg()).unwrap();
    }

    fn svg(&self) -> String {
        let height = TOP + self.0.len() * ROW + 10;
        let end = TEXT as f64 + WHOLE;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
             <title>CPU time at the node, as a share of that with kube-proxy's nftables rules</title>\n\
             <style>{STYLE}</style>\n\
             <text x=\"0\" y=\"16\">CPU time at the node; kube-proxy's nftables rules = 100 %</text>\n\
             <rect class=\"nodelb\" x=\"0\" y=\"30\" width=\"{BAR}\" height=\"{BAR}\"/><text x=\"20\" y=\"42\">nodelb</text>\n\
             <rect class=\"plain\" x=\"90\" y=\"30\" width=\"{BAR}\" height=\"{BAR}\"/>\
             <text x=\"110\" y=\"42\">plain forwarding to the backend, without a service</text>\n\
             <line class=\"whole\" x1=\"{end}\" x2=\"{end}\" y1=\"{TOP}\" y2=\"{}\"/>\
             <text class=\"small\" x=\"{end}\" y=\"{}\" text-anchor=\"middle\">100 %</text>\n",
            height - 10,
            TOP - 6,
        );
        for (number, row) in self.0.iter().enumerate() {
            let top = TOP + number * ROW + 6;
            writeln!(svg, "<text x=\"0\" y=\"{}\">{}</text>", top + BAR + 5, row.what).unwrap();
            for (bar, (class, share)) in [("nodelb", row.nodelb), ("plain", row.plain)].into_iter().enumerate() {
                let (y, width) = (top + bar * (BAR + 2), share * WHOLE);
                writeln!(
                    svg,
                    "<rect class=\"{class}\" x=\"{TEXT}\" y=\"{y}\" width=\"{width:.0}\" height=\"{BAR}\"/>\
                     <text class=\"small\" x=\"{:.0}\" y=\"{}\">{:.0} %</text>",
                    TEXT as f64 + width + 6.0,
                    y + BAR - 3,
                    share * 100.0,
                )
                .unwrap();
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}
