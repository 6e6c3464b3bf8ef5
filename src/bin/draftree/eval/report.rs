//! What `draftree eval` prints: tables, or one JSON object.

use std::collections::BTreeMap;
use std::fmt;

use draftree::model::DraftHeads;
use draftree::speculate::Source;
use draftree::speculate::accept::AcceptRule;
use draftree::train::replay::{Agreement, Steps, Summary, Tally, Text, Way};
use serde_json::{Value, json};

use super::Args;

/// What one way of drafting came to.
pub struct Run {
    pub way: Way,
    pub summary: Summary,
    /// Of every text.
    pub steps: Vec<Steps>,
    /// With the texts of the exact rule, where texts were written.
    pub agreement: Option<Agreement>,
}

/// Everything that was found.
pub struct Report<'a> {
    pub model: &'a str,
    pub heads: Option<&'a DraftHeads>,
    pub args: &'a Args,
    pub texts: &'a [Text],
    pub runs: Vec<Run>,
}

fn rule(rule: AcceptRule) -> String {
    match rule {
        AcceptRule::Exact => "exact".to_owned(),
        AcceptRule::Rejection => "rejection".to_owned(),
        AcceptRule::Typical { epsilon, alpha } => format!("typical:{epsilon},{alpha}"),
        AcceptRule::TopK { k, tolerance } => format!("topk:{k},{tolerance}"),
    }
}

/// Columns as wide as their widest cell, the first left-aligned up to `left`.
fn table(f: &mut fmt::Formatter<'_>, rows: &[Vec<String>], left: usize) -> fmt::Result {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column < left {
            true => format!("{cell:<width$}"),
            false => format!("{cell:>width$}"),
        });
        writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn rate(rate: Option<f64>) -> String {
    rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.2}"))
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

impl Run {
    /// The words that name it.
    fn name(&self) -> Vec<String> {
        vec![self.way.draft.clone(), self.way.tree.clone(), self.way.plan.nodes().to_string()]
    }

    /// Offered and accepted by drafter and depth, as the engine counts them.
    fn acceptance(&self) -> impl Iterator<Item = (Source, Vec<(u32, u32)>)> {
        let all = &self.summary.all.steps.stats.acceptance;
        let seen = Source::DRAFTERS.into_iter().zip(all).filter(|(_, depths)| !depths.is_empty());
        seen.map(|(source, depths)| (source, depths.iter().map(|seen| (seen.offered, seen.accepted)).collect()))
    }

    fn json(&self, texts: &[Text], plain_ms: Option<f64>) -> Value {
        let Self { way, summary, steps, agreement } = self;
        let stats = &summary.all.steps.stats;
        let by_category = summary.categories.iter().map(|(name, tally)| (name.clone(), json!(tally.tokens_per_pass())));
        let acceptance = self.acceptance().map(|(source, depths)| {
            let depths = depths.iter().zip(1..).map(
                |((offered, accepted), depth)| json!({ "depth": depth, "offered": offered, "accepted": accepted }),
            );
            (source.name(), depths.collect::<Vec<_>>())
        });
        let by_source = Source::ALL.iter().zip(stats.tokens).map(|(source, tokens)| (source.name(), tokens));
        let answers = texts
            .iter()
            .zip(steps)
            .map(|(text, steps)| json!({ "id": text.answer.id, "tokens": steps.tokens(), "passes": steps.passes() }));
        let speed = |tally: &Tally| plain_ms.and_then(|plain_ms| tally.speed_up(plain_ms));
        let speeds = summary.categories.iter().map(|(name, tally)| (name.clone(), json!(speed(tally))));
        let speeds = plain_ms.map(|_| {
            json!({
                "mean_of_categories": summary.mean(speed),
                "pooled": speed(&summary.all),
                "by_category": speeds.collect::<serde_json::Map<_, _>>(),
            })
        });
        json!({
            "draft": way.draft,
            "tree": way.tree,
            "nodes": way.plan.nodes(),
            "accept": rule(way.plan.accept),
            "tokens_per_pass": {
                "mean_of_categories": summary.mean(Tally::tokens_per_pass),
                "pooled": summary.all.tokens_per_pass(),
                "pooled_without_looping": summary.steady.tokens_per_pass(),
                "looping": summary.looping.tokens_per_pass(),
                "by_category": by_category.collect::<serde_json::Map<_, _>>(),
            },
            "speed_up": speeds,
            "tokens": summary.all.steps.tokens(),
            "passes": summary.all.steps.passes(),
            "rows": stats.rows.iter().map(|&rows| u64::from(rows)).sum::<u64>(),
            "passes_by_tokens": summary.all.steps.emitted,
            "reached": summary.all.reached(),
            "acceptance": acceptance.collect::<BTreeMap<_, _>>(),
            "tokens_by_source": by_source.collect::<BTreeMap<_, _>>(),
            "agreement": agreement.map(|agreement| json!({
                "identical": agreement.identical,
                "common_prefix": agreement.prefix,
                "common_prefix_tokens": agreement.prefix_tokens,
            })),
            "answers": answers.collect::<Vec<_>>(),
        })
    }
}

impl Report<'_> {
    /// All of it.
    pub fn json(&self) -> Value {
        let args = self.args;
        let looping = self.texts.iter().filter(|text| text.first(args.max_tokens).loops());
        json!({
            "model": self.model,
            "heads": self.heads.map(|heads| json!({
                "form": heads.form.as_str(),
                "depths": heads.depths,
                "layers": heads.layers,
                "draft_vocabulary": heads.draft_vocab,
                "rank": heads.rank,
            })),
            "max_tokens": args.max_tokens,
            "temperature": args.temperature,
            "seed": args.seed,
            "kept_between_answers": args.keep,
            "answers": self.texts.len(),
            "looping": looping.map(|text| &text.answer.id).collect::<Vec<_>>(),
            "runs": self.runs.iter().map(|run| run.json(self.texts, args.pass_ms.first().copied())).collect::<Vec<_>>(),
        })
    }

    /// Speed relative to plain decoding by category; the sums last.
    fn speeds(&self, f: &mut fmt::Formatter<'_>, plain_ms: f64) -> fmt::Result {
        let Some(first) = self.runs.first() else { return Ok(()) };
        let head = ["drafters", "tree", "nodes"].map(str::to_owned).into_iter();
        let names = first.summary.categories.iter().map(|(name, _)| name.clone());
        let mut rows = vec![head.chain(names).chain(["mean", "pooled"].map(str::to_owned)).collect::<Vec<_>>()];
        let speed = |tally: &Tally| tally.speed_up(plain_ms);
        for run in &self.runs {
            let categories = run.summary.categories.iter().map(|(_, tally)| rate(speed(tally)));
            let sums = [run.summary.mean(speed), speed(&run.summary.all)].map(rate);
            rows.push(run.name().into_iter().chain(categories).chain(sums).collect());
        }
        table(f, &rows, 2)
    }

    /// Tokens per pass by category; the sums last.
    fn rates(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lossy = self.args.is_live();
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let mut head = words(&["drafters", "tree", "nodes"]);
        let Some(first) = self.runs.first() else { return Ok(()) };
        if lossy {
            head.push("accept".to_owned());
        }
        head.extend(first.summary.categories.iter().map(|(name, _)| name.clone()));
        head.extend(words(&["mean", "pooled"]));
        head.extend(words(if lossy { &["same texts", "same tokens"] } else { &["without loops", "loops"] }));
        let mut rows = vec![head];
        for run in &self.runs {
            let mut row = run.name();
            if lossy {
                row.push(rule(run.way.plan.accept));
            }
            row.extend(run.summary.categories.iter().map(|(_, tally)| rate(tally.tokens_per_pass())));
            row.extend([rate(run.summary.mean(Tally::tokens_per_pass)), rate(run.summary.all.tokens_per_pass())]);
            match run.agreement {
                Some(agreement) => row.extend([agreement.identical, agreement.prefix].map(percent)),
                None => row.extend([&run.summary.steady, &run.summary.looping].map(Tally::tokens_per_pass).map(rate)),
            }
            rows.push(row);
        }
        table(f, &rows, 2)
    }

    /// How deep passes went, and who was right how often.
    fn depths(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows: Vec<Vec<String>> = Vec::new();
        let deepest = 8;
        let head = ["drafters", "tree", "nodes", "of"].map(str::to_owned).into_iter();
        rows.push(head.chain((1..=deepest).map(|depth| format!("depth {depth}"))).collect());
        for run in &self.runs {
            let named = |what: &str| run.name().into_iter().chain([what.to_owned()]);
            let reached = run.summary.all.reached();
            // All passes reach depth 0.
            rows.push(
                named("passes").chain(reached.iter().skip(1).take(deepest).map(|&share| percent(share))).collect(),
            );
            for (source, depths) in run.acceptance() {
                let share = |&(offered, accepted): &(u32, u32)| match offered {
                    0 => "-".to_owned(),
                    _ => percent(f64::from(accepted) / f64::from(offered)),
                };
                rows.push(named(source.name()).chain(depths.iter().take(deepest).map(share)).collect());
            }
        }
        table(f, &rows, 2)
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let args = self.args;
        let texts: Vec<Text> = self.texts.iter().map(|text| text.first(args.max_tokens)).collect();
        let looping = texts.iter().filter(|text| text.loops()).count();
        let kept = if args.keep { "drafting remembers from one to the next" } else { "each drafted afresh" };
        writeln!(f, "{}: {} answers of at most {} tokens, {kept}", self.model, texts.len(), args.max_tokens)?;
        if args.is_live() {
            writeln!(f, "written at temperature {} with seed {}", args.temperature, args.seed)?;
        } else {
            let tokens: usize = texts.iter().map(|text| text.answer.tokens.len()).sum();
            writeln!(f, "{tokens} tokens, greedy; {looping} answers go round in circles at their end")?;
        }
        writeln!(
            f,
            "\nTokens per pass, prompts not counted; the mean is that of the categories, pooled is all tokens by all passes"
        )?;
        self.rates(f)?;
        if let Some(&plain_ms) = args.pass_ms.first() {
            writeln!(f, "\nTimes as fast as plain decoding, where passes and heads take as long as was given")?;
            self.speeds(f, plain_ms)?;
        }
        writeln!(
            f,
            "\nPasses that accepted so many drafted tokens; and, where a drafter had a child at a depth, how often it was right"
        )?;
        self.depths(f)
    }
}
