from . import algorithms as algorithms, data as data, experiments as experiments, population as population
