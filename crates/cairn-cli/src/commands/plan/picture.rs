//! Draws a plan: domains of processes on the left, domains of devices on the right, and the routes
//! between them.

use crate::balancer::{Domain, Plan, Route};
use crate::output::markup::escaped;

const ROW: usize = 34;
const BOX_WIDTH: usize = 240;
const BOX_HEIGHT: usize = 24;
const GAP: usize = 360;
const MARGIN: usize = 20;
const LINE_WIDTH_MAX: f64 = 14.0;
/// Colours of safe routes and of exposed ones.
const SAFE: &str = "#3b6ea5";
const EXPOSED: &str = "#c0392b";

/// Returns the plan as SVG.
pub fn draw(plan: &Plan) -> String {
    let rows = plan.rank_domains.len().max(plan.target_domains.len());
    let (width, height) = (2 * (MARGIN + BOX_WIDTH) + GAP, 2 * MARGIN + (rows + 1) * ROW);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let most = plan.routes.iter().map(|route| route.ranks).max().unwrap_or(1);
    for route in &plan.routes {
        svg.push_str(&line(route, most));
    }
    column(&mut svg, MARGIN, "Processes", "rank", &plan.rank_domains);
    column(&mut svg, MARGIN + BOX_WIDTH + GAP, "Devices", "target", &plan.target_domains);
    svg + "</svg>\n"
}

/// Returns the upper edge of a row of boxes, below the heading.
fn top(row: usize) -> usize {
    MARGIN + (row + 1) * ROW
}

fn line(route: &Route, most: u64) -> String {
    let middle = |row: usize| top(row) + BOX_HEIGHT / 2;
    let colour = if route.is_exposed { EXPOSED } else { SAFE };
    let width = (LINE_WIDTH_MAX * route.ranks as f64 / most as f64).max(1.0);
    let (from, to) = (MARGIN + BOX_WIDTH, MARGIN + BOX_WIDTH + GAP);
    format!(
        "<line x1=\"{from}\" y1=\"{}\" x2=\"{to}\" y2=\"{}\" stroke=\"{colour}\" \
         stroke-width=\"{width:.1}\" stroke-opacity=\"0.5\"><title>{} ranks</title></line>\n",
        middle(route.from),
        middle(route.to),
        route.ranks
    )
}

fn column(svg: &mut String, x: usize, title: &str, noun: &str, domains: &[Domain]) {
    let mut add = |text: String| svg.push_str(&text);
    add(format!("<text x=\"{x}\" y=\"{}\" font-weight=\"bold\">{title}</text>\n", MARGIN + 12));
    for (row, domain) in domains.iter().enumerate() {
        let y = top(row);
        let name = match &domain.switch {
            Some(switch) => format!("switch {switch}"),
            None => format!("node {}", domain.node),
        };
        let members = crate::output::count(domain.members as u64, noun);
        add(format!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{BOX_WIDTH}\" height=\"{BOX_HEIGHT}\" rx=\"4\" \
             fill=\"#eef2f6\" stroke=\"#889\"/>\n\
             <text x=\"{}\" y=\"{}\">{}: {members}</text>\n",
            x + 8,
            y + 16,
            escaped(&name)
        ));
    }
}
