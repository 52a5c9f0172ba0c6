//! Quality measures of a plan.

use super::Plan;

impl Plan {
    /// Returns the number of ranks of the busiest device, and the average number.
    fn loads(&self) -> (f64, f64) {
        let most = self.targets.iter().map(|target| target.ranks.len()).max().unwrap_or(0);
        (most as f64, self.target_of.len() as f64 / self.targets.len().max(1) as f64)
    }

    /// Returns the load of the busiest device divided by the average load; 1 is perfect.
    pub fn worst_load_ratio(&self) -> f64 {
        let (most, mean) = self.loads();
        most / mean
    }

    /// Returns the standard deviation of the devices' load divided by its mean (NVMe-CR, figure
    /// 7b); 0 is perfect.
    pub fn coefficient_of_variation(&self) -> f64 {
        let (_, mean) = self.loads();
        let square = |ranks: usize| (ranks as f64 - mean).powi(2);
        let squares: f64 = self.targets.iter().map(|target| square(target.ranks.len())).sum();
        (squares / self.targets.len() as f64).sqrt() / mean
    }
}
