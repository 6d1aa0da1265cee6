"""Print the values that rivals of E3BMClassifier use with one shot."""

from classifier_measure.one_shot import best_values

from e3bm.fewshot.meta.settings import PriorSettings
from e3bm.fewshot.meta.views import open_pools
from e3bm.progress import Silent

if __name__ == "__main__":
    for rival, value in best_values(open_pools("val", PriorSettings(), Silent()), 6).items():
        print(f"{rival}: {value}")
