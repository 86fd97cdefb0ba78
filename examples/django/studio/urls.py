"""Where the views are."""

from django.urls import path
from films.views import films

urlpatterns = [path("films/", films)]
