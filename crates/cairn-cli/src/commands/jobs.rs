//! `cairn ls --jobs`: lists the stores on this machine.

use crate::create::staging::reuse;
use crate::error::Result;
use crate::output::duration;
use crate::size::human;
use crate::store::survey::{StoreRow, survey};
use crate::store::unsaved::{said, shown};
use crate::{Context, output};

/// Runs the command.
pub fn list(context: &Context) -> Result<()> {
    let rows = survey(&context.roots);
    if context.json {
        return output::json(&rows);
    }
    if rows.is_empty() {
        output::line("no stores");
    }
    table(&rows).iter().for_each(|line| output::line(line));
    let beside = context.roots.reusable().into_iter();
    for directory in beside.chain(context.settings.stage.reuse_dir.as_deref().map(reuse::own_part))
    {
        let (files, bytes) = reuse::amount(&directory);
        if files > 0 {
            let (files, bytes) = (output::count(files, "input"), human(bytes));
            output::line(&format!(
                "{files}, {bytes}, kept for later jobs in {}; to remove them: cairn {}gc --reusable",
                directory.display(),
                context.roots.option()
            ));
        }
    }
    Ok(())
}

/// Returns the rows for a person, below a headline.
fn table(rows: &[StoreRow]) -> Vec<String> {
    const HEADLINE: [&str; 8] =
        ["JOB", "OWNER", "IDLE", "STATE", "HOLDS", "FILES", "NOT SAFE", "PERSIST"];
    if rows.is_empty() {
        return Vec::new();
    }
    let headline = HEADLINE.map(str::to_string);
    let cells: Vec<[String; 8]> = std::iter::once(headline).chain(rows.iter().map(cells)).collect();
    let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let [w0, w1, w2, w3, w4, w5, w6, _] = std::array::from_fn(width);
    let line = |[job, owner, idle, state, holds, files, not_safe, persist]: &[String; 8]| {
        format!(
            "{job:<w0$}  {owner:<w1$}  {idle:>w2$}  {state:<w3$}  {holds:>w4$}  {files:>w5$}  \
             {not_safe:<w6$}  {persist}"
        )
    };
    cells.iter().map(line).collect()
}

fn cells(row: &StoreRow) -> [String; 8] {
    let persist = row.persist.as_ref().map(|path| path.display().to_string());
    let persist = row.persist_problem.clone().or(persist);
    let not_safe = match row.not_safe {
        None => "nothing can be said".to_string(),
        Some(amount) if row.reasons.is_empty() => shown(amount),
        Some(amount) => format!("{}: {}", shown(amount), said(&row.reasons)),
    };
    [
        output::escaped(row.job.as_bytes()),
        row.owner.clone(),
        duration::human(row.idle().as_secs_f64()),
        row.state.word().to_string(),
        human(row.held_bytes),
        row.contents.map_or("?".to_string(), |contents| contents.files.to_string()),
        not_safe,
        row.problem.clone().or(persist).unwrap_or("none: nothing is drained".to_string()),
    ]
}
