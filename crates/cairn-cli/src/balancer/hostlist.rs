//! Lists of hosts and of tasks in Slurm's syntax: `n[1-3,07],login`, and `4(x2),3`.
//!
//! Invariant: a text that is not such a list is an error. No text, however short, expands to more
//! than [`HOSTS_MAX`] entries.

/// Maximum number of entries; more hosts than any machine has.
pub const HOSTS_MAX: usize = 1 << 20;

/// Why a text is not a list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// An unpaired bracket, or one inside another.
    #[error("{text:?} has an unmatched bracket")]
    Bracket {
        /// The malformed part.
        text: String,
    },
    /// The text in brackets, or a number of tasks, is not a number or range.
    #[error("{text:?} is not a number or a range like 1-16")]
    Range {
        /// The malformed part.
        text: String,
    },
    /// A name is missing, as in `n1,,n2`.
    #[error("a name is missing in {text:?}")]
    Empty {
        /// The list.
        text: String,
    },
    /// The list has too many entries.
    #[error("the list has more than {HOSTS_MAX} entries")]
    TooLong,
}

/// Returns the hosts of a list, in its order. `n[08-10]` expands to n08, n09, n10. Several brackets
/// in one name give every combination.
pub fn expand(list: &str) -> Result<Vec<String>, ListError> {
    let mut hosts = Vec::new();
    for name in split(list)? {
        expand_name(name, &mut hosts)?;
    }
    Ok(hosts)
}

/// Returns the number of tasks on each node from a list as in `SLURM_TASKS_PER_NODE`: `4(x2),3` is
/// 4, 4, 3.
pub fn repeated(list: &str) -> Result<Vec<u32>, ListError> {
    let mut numbers = Vec::new();
    for entry in list.split(',') {
        let wrong = || ListError::Range { text: entry.to_string() };
        let (number, times) = match entry.trim().split_once("(x") {
            Some((number, rest)) => (number, rest.strip_suffix(')').ok_or_else(wrong)?),
            None => (entry.trim(), "1"),
        };
        let number: u32 = number.parse().map_err(|_| wrong())?;
        let times: usize = times.parse().map_err(|_| wrong())?;
        if times > HOSTS_MAX - numbers.len() {
            return Err(ListError::TooLong);
        }
        numbers.extend(std::iter::repeat_n(number, times));
    }
    Ok(numbers)
}

/// Splits at the commas outside of brackets.
fn split(list: &str) -> Result<Vec<&str>, ListError> {
    let mut names = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, letter) in list.char_indices() {
        match letter {
            '[' | ']' if inside == (letter == '[') => {
                return Err(ListError::Bracket { text: list.to_string() });
            }
            '[' | ']' => inside = !inside,
            ',' if !inside => {
                names.push(list[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    names.push(list[start..].trim());
    match names.iter().any(|name| name.is_empty()) {
        _ if inside => Err(ListError::Bracket { text: list.to_string() }),
        true => Err(ListError::Empty { text: list.to_string() }),
        false => Ok(names),
    }
}

fn expand_name(name: &str, hosts: &mut Vec<String>) -> Result<(), ListError> {
    let mut heads = vec![String::new()];
    let mut rest = name;
    while let Some((before, inside_and_after)) = rest.split_once('[') {
        let (inside, after) = inside_and_after
            .split_once(']')
            .ok_or_else(|| ListError::Bracket { text: name.to_string() })?;
        let mut longer = Vec::new();
        for range in inside.split(',') {
            let range = Range::parse(range)?;
            let count = (range.last - range.first + 1) as usize;
            if count.saturating_mul(heads.len()) > HOSTS_MAX - hosts.len() - longer.len() {
                return Err(ListError::TooLong);
            }
            for head in &heads {
                longer.extend(range.numbers().map(|number| format!("{head}{before}{number}")));
            }
        }
        heads = longer;
        rest = after;
    }
    if heads.len() > HOSTS_MAX - hosts.len() {
        return Err(ListError::TooLong);
    }
    hosts.extend(heads.into_iter().map(|head| head + rest));
    Ok(())
}

/// A range such as `08-10`, with the minimum number of digits.
struct Range {
    first: u64,
    last: u64,
    digits: usize,
}

impl Range {
    fn parse(text: &str) -> Result<Range, ListError> {
        let wrong = || ListError::Range { text: text.to_string() };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| digits.parse::<u32>().ok()).flatten().map(u64::from).ok_or_else(wrong)
        };
        let range = Range { first: number(first)?, last: number(last)?, digits: first.len() };
        if range.first <= range.last { Ok(range) } else { Err(wrong()) }
    }

    fn numbers(&self) -> impl Iterator<Item = String> {
        let digits = self.digits;
        (self.first..=self.last).map(move |number| format!("{number:0digits$}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_hosts_are_expanded_in_their_order() {
        assert_eq!(expand("n[1-3],login").unwrap(), ["n1", "n2", "n3", "login"]);
        assert_eq!(expand("n[08-10,2]-ib").unwrap(), ["n08-ib", "n09-ib", "n10-ib", "n2-ib"]);
        assert_eq!(expand("r[1-2]n[1-2]").unwrap(), ["r1n1", "r1n2", "r2n1", "r2n2"]);
    }

    #[test]
    fn what_is_not_a_list_is_refused() {
        for (text, part) in [("n[1-", "n[1-"), ("n]1[", "n]1["), ("n[[1]]", "n[[1]]")] {
            assert_eq!(expand(text), Err(ListError::Bracket { text: part.to_string() }));
        }
        for (text, part) in [("n[3-1]", "3-1"), ("n[a]", "a"), ("n[+1]", "+1"), ("n[]", "")] {
            assert_eq!(expand(text), Err(ListError::Range { text: part.to_string() }));
        }
        for text in ["", "n1,,n2", "n1,"] {
            assert_eq!(expand(text), Err(ListError::Empty { text: text.to_string() }));
        }
        for text in ["n[0-4294967295]", "n[0-9999]x[0-9999]", "n[0-1048575],n"] {
            assert_eq!(expand(text), Err(ListError::TooLong));
        }
    }

    #[test]
    fn tasks_of_nodes_are_repeated() {
        assert_eq!(repeated("4(x2),3").unwrap(), [4, 4, 3]);
        for text in ["", "4(x", "x", "4(x2", "-1"] {
            assert!(matches!(repeated(text), Err(ListError::Range { .. })), "{text}");
        }
        assert_eq!(repeated("1(x99999999)"), Err(ListError::TooLong));
    }
}
