//! Pictures: SVG of few kilobytes, the same bytes for the same data. They bring their white ground along, so that
//! they can be read on dark pages as well.

use super::data::rank;
use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{KeyPointHint, Ranged};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 420;
const INK: RGBColor = RGBColor(40, 40, 40);
const FAINT: RGBColor = RGBColor(215, 215, 215);

/// Colours that the colour-blind can tell apart too (Okabe and Ito), one for each side wherever it is drawn.
const COLOURS: [RGBColor; 11] = [
    RGBColor(150, 150, 150),
    RGBColor(213, 94, 0),
    RGBColor(230, 159, 0),
    RGBColor(240, 200, 60),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(0, 90, 170),
    RGBColor(120, 200, 170),
    RGBColor(0, 158, 115),
    RGBColor(0, 0, 0),
    RGBColor(120, 80, 40),
];

/// An axis: what it shows, and how a value of it is written.
pub struct Axis {
    /// What it shows, with its unit.
    pub title: &'static str,
    /// Whether equal distances are equal ratios.
    pub is_log: bool,
    /// How a value is written.
    pub write: fn(f64) -> String,
}

/// One line or one bar of each group.
pub struct Series {
    /// What it is.
    pub name: String,
    /// Its colour.
    pub colour: usize,
    /// Whether it stands behind, broken or pale: when what the other shows had also been sent.
    pub is_faint: bool,
    /// Where, and how much.
    pub points: Vec<(f64, f64)>,
}

impl Series {
    /// Of a side of `far`, in its colour.
    pub fn of_side(side: &str, name: String, is_faint: bool, points: Vec<(f64, f64)>) -> Series {
        Series { name, colour: rank(side).min(COLOURS.len() - 1), is_faint, points }
    }
}

/// A range of a number axis on which marks are where they are readable: at 1, 2 and 5 of each power of ten, or at
/// places that were given.
#[derive(Clone)]
struct Scale {
    inner: RangedCoordf64,
    is_log: bool,
    marks: Vec<f64>,
}

impl Scale {
    fn new(axis: &Axis, low: f64, high: f64, marks: Option<Vec<f64>>) -> Scale {
        let marks = marks.unwrap_or_else(|| match axis.is_log {
            true => decades(low, high),
            false => (0..=10).map(|step| f64::from(step) * round_up((high - low) / 10.0) + low).collect(),
        });
        let place = |value: f64| if axis.is_log { value.ln() } else { value };
        let marks = marks.into_iter().filter(|mark| (low..=high).contains(mark)).collect();
        Scale { inner: (place(low)..place(high)).into(), is_log: axis.is_log, marks }
    }
}

fn decades(low: f64, high: f64) -> Vec<f64> {
    let few = high / low > 3e3;
    let factors: &[f64] = if few { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    powers.flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power))).collect()
}

/// The next of 1, 2, 2.5, 5 times a power of ten.
fn round_up(step: f64) -> f64 {
    let power = 10f64.powf(step.log10().floor());
    let factor = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|factor| factor * power >= step * 0.999);
    factor.unwrap_or(10.0) * power
}

impl Ranged for Scale {
    type FormatOption = plotters::coord::ranged1d::NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        self.inner.map(&if self.is_log { value.ln() } else { *value }, limit)
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        // Lines between the marks would say nothing.
        if hint.weight().allow_light_points() { Vec::new() } else { self.marks.clone() }
    }

    fn range(&self) -> std::ops::Range<f64> {
        let range = self.inner.range();
        if self.is_log { range.start.exp()..range.end.exp() } else { range }
    }
}

impl plotters::coord::ranged1d::ValueFormatter<f64> for Scale {
    fn format(value: &f64) -> String {
        value.to_string()
    }
}

fn bounds(values: impl Iterator<Item = f64>, axis: &Axis) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)));
    match axis.is_log {
        true => (low, high),
        false => (low.min(0.0), high),
    }
}

/// How pictures are written of `series` against two axes; `marks` are where the first has its marks.
pub fn lines(
    title: &str,
    across: &Axis,
    up: &Axis,
    marks: Option<Vec<f64>>,
    series: &[Series],
) -> Result<String> {
    let points = || series.iter().flat_map(|series| series.points.iter());
    if points().next().is_none() {
        return Err(anyhow!("{title}: there is nothing to draw"));
    }
    let (left, right) = bounds(points().map(|point| point.0), across);
    let (bottom, top) = bounds(points().map(|point| point.1), up);
    let x = Scale::new(across, left, if right > left { right } else { left + 1.0 }, marks);
    let y = match up.is_log {
        true => Scale::new(up, bottom / 1.5, top * 1.5, None),
        false => Scale::new(up, bottom, top * 1.05, None),
    };
    let mut svg = String::new();
    let failed = |error: &dyn std::fmt::Display| anyhow!("{title}: {error}");
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE).map_err(|error| failed(&error))?;
        let (area, legend) = area.split_horizontally(WIDTH - 235);
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 17).into_font().color(&INK))
            .margin(12)
            .x_label_area_size(44)
            .y_label_area_size(66)
            .build_cartesian_2d(x, y)
            .map_err(|error| failed(&error))?;
        mesh(&mut chart, across, up).map_err(|error| failed(&error))?;
        for series in series {
            let style = COLOURS[series.colour].stroke_width(2);
            let points = series.points.iter().copied();
            match series.is_faint {
                true => chart.draw_series(DashedLineSeries::new(points.clone(), 5, 4, style)).map(drop),
                false => chart.draw_series(LineSeries::new(points.clone(), style)).map(drop),
            }
            .map_err(|error| failed(&error))?;
            if series.points.len() <= 24 {
                let dots = points.map(|point| Circle::new(point, 3, COLOURS[series.colour].filled()));
                chart.draw_series(dots).map_err(|error| failed(&error))?;
            }
        }
        names(&legend, series).map_err(|error| failed(&error))?;
        legend.present().map_err(|error| failed(&error))?;
    }
    Ok(svg)
}

/// Bars, one for each series in each group; points are at the numbers of groups.
pub fn bars(title: &str, groups: &[String], up: &Axis, series: &[Series]) -> Result<String> {
    let heights = || series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    if heights().next().is_none() {
        return Err(anyhow!("{title}: there is nothing to draw"));
    }
    let (low, high) = bounds(heights(), up);
    // A bar of the least height is still to be seen.
    let floor = if up.is_log { 10f64.powf((low / 2.0).log10().floor()) } else { 0.0 };
    let sides: Vec<&Series> = series.iter().filter(|series| !series.is_faint).collect();
    let across = Axis { title: "", is_log: false, write: |_| String::new() };
    let centres = (0..groups.len()).map(|group| group as f64 + 0.5).collect();
    let x = Scale::new(&across, 0.0, groups.len() as f64, Some(centres));
    let y = Scale::new(up, floor, high * if up.is_log { 2.5 } else { 1.15 }, None);
    let width = 0.84 / sides.len().max(1) as f64;
    let mut svg = String::new();
    let failed = |error: &dyn std::fmt::Display| anyhow!("{title}: {error}");
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        area.fill(&WHITE).map_err(|error| failed(&error))?;
        let (area, legend) = area.split_horizontally(WIDTH - 235);
        let mut chart = ChartBuilder::on(&area)
            .caption(title, ("sans-serif", 17).into_font().color(&INK))
            .margin(12)
            .x_label_area_size(30)
            .y_label_area_size(66)
            .build_cartesian_2d(x, y)
            .map_err(|error| failed(&error))?;
        let name = |at: &f64| groups.get(*at as usize).cloned().unwrap_or_default();
        chart
            .configure_mesh()
            .disable_x_mesh()
            .bold_line_style(FAINT)
            .axis_style(INK)
            .label_style(("sans-serif", 14).into_font().color(&INK))
            .x_label_formatter(&name)
            .y_desc(up.title)
            .y_label_formatter(&|value| (up.write)(*value))
            .draw()
            .map_err(|error| failed(&error))?;
        // Those that stand behind first.
        for series in series.iter().filter(|series| series.is_faint).chain(sides.iter().copied()) {
            let Some(place) = sides.iter().position(|side| side.colour == series.colour) else { continue };
            let left = |group: f64| group + 0.08 + place as f64 * width;
            let colour = COLOURS[series.colour].mix(if series.is_faint { 0.35 } else { 1.0 });
            let of = series.points.iter();
            let rectangles = of.clone().map(|(group, value)| {
                Rectangle::new([(left(*group), floor), (left(*group) + width * 0.9, *value)], colour.filled())
            });
            chart.draw_series(rectangles).map_err(|error| failed(&error))?;
            let style = ("sans-serif", 11).into_font().color(&INK).pos(Pos::new(HPos::Center, VPos::Bottom));
            let values = of.map(|(group, value)| {
                Text::new((up.write)(*value), (left(*group) + width * 0.45, *value), style.clone())
            });
            chart.draw_series(values).map_err(|error| failed(&error))?;
        }
        names(&legend, series).map_err(|error| failed(&error))?;
        legend.present().map_err(|error| failed(&error))?;
    }
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Scale, Scale>>;

fn mesh(chart: &mut Chart<'_, '_>, across: &Axis, up: &Axis) -> Result<()> {
    chart
        .configure_mesh()
        .bold_line_style(FAINT)
        .axis_style(INK)
        .label_style(("sans-serif", 14).into_font().color(&INK))
        .x_desc(across.title)
        .x_label_formatter(&|value| (across.write)(*value))
        .y_desc(up.title)
        .y_label_formatter(&|value| (up.write)(*value))
        .draw()
        .map_err(|error| anyhow!("{error}"))
}

/// What the series are called, beside the picture.
fn names(area: &Area<'_>, series: &[Series]) -> Result<()> {
    let style = ("sans-serif", 14).into_font().color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    for (row, series) in series.iter().enumerate() {
        let y = 52 + 22 * row as i32;
        let colour = COLOURS[series.colour].mix(if series.is_faint { 0.35 } else { 1.0 });
        area.draw(&Rectangle::new([(4, y - 5), (18, y + 5)], colour.filled()))
            .map_err(|error| anyhow!("{error}"))?;
        area.draw(&Text::new(series.name.clone(), (25, y), style.clone()))
            .map_err(|error| anyhow!("{error}"))?;
    }
    Ok(())
}
